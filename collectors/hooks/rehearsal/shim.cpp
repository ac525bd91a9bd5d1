// A device guard and hooks for CUDA that need no device.
//
// Fake tensors on "cuda" need a guard (which device is current) and hooks that say that CUDA is
// there: autograd's engine asks both. A CPU build of torch has neither; a CUDA build's own ask the
// driver. Loaded before torch's Python module is: the hooks are looked up once, when that comes up.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <string>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

thread_local DeviceIndex current = 0;

void set_current(Device device) noexcept {
  if (device.index() >= 0) current = device.index();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    Device before(DeviceType::CUDA, current);
    set_current(device);
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  void setDevice(Device device) const override { set_current(device); }
  void uncheckedSetDevice(Device device) const noexcept override { set_current(device); }
  Stream getStream(Device device) const override {
    const DeviceIndex index = device.index() < 0 ? current : device.index();
    return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, index));
  }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override {
    const char* said = std::getenv("ADVISOR_REHEARSED_DEVICES");
    const int count = said == nullptr ? 1 : std::atoi(said);
    return static_cast<DeviceIndex>(count < 1 ? 1 : count > 64 ? 64 : count);
  }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};

}  // namespace

namespace at {

// The name is the key by which torch looks the hooks up.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  std::string showConfig() const override { return {}; }
};

// Before a CUDA build's own, which has the default priority.
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks);
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace at
