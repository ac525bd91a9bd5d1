"""Packages that need CUDA to be imported, as far as training scripts use them.

Each is a function that makes the module, called where the script imports the package and it is
not there (or cannot be). A new one is a function here and a line in ``STUBS``; one that is there
and compiles its kernels when it is used has a line in ``CHANGED``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .values import Notes


def _flash_attention(module: Any) -> None:
    """Fill ``flash_attn``: attention over (batch, length, heads, width), by torch's own kernel."""
    from torch.nn import functional

    def flash_attn_func(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None,
        causal: bool = False, **_: Any,
    ) -> Any:  # fmt: skip
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        found = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        return found.transpose(1, 2)

    def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
        return flash_attn_func(*qkv.unbind(2), *args, **kwargs)

    def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
        return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
        max_seqlen_k: int, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        # As one sequence a batch of the longest: no less than what the kernel does.
        return flash_attn_func(q[None], k[None], v[None], *args, **kwargs)[0]

    module.__version__ = "2.8.0"
    for own in (
        flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func,
        flash_attn_varlen_func,
    ):  # fmt: skip
        setattr(module, own.__name__, own)
    interface: Any = types.ModuleType("flash_attn.flash_attn_interface")
    interface.__dict__.update({k: v for k, v in vars(module).items() if k.startswith("flash_")})
    sys.modules["flash_attn.flash_attn_interface"] = module.flash_attn_interface = interface


# Package -> what fills its stub.
STUBS: dict[str, Callable[[Any], None]] = {"flash_attn": _flash_attention}


def _deepspeed_kernels(module: Any) -> None:
    """Have DeepSpeed's builders hand out stand-ins and compile nothing with CUDA's compiler."""

    def load(self: Any, verbose: bool = False) -> Any:
        kernels = {"fused_adam": _FusedAdam, "cpu_adam": _HostAdam}.get(self.name)
        return kernels() if kernels is not None else _Unknown(self.name)

    module.OpBuilder.load = load
    module.OpBuilder.is_compatible = lambda self, verbose=False: True


class _FusedAdam:
    """Adam over lists of tensors in one kernel, as torch's own."""

    def multi_tensor_adam(
        self, chunk: int, overflow: Any, lists: Any, lr: float, beta1: float, beta2: float,
        eps: float, step: int, decoupled: int, bias_correction: int, weight_decay: float,
    ) -> None:  # fmt: skip
        import torch

        gradients, parameters, first, second = lists
        steps = [torch.full((), float(step), device=one.device) for one in parameters]
        update = torch._fused_adamw_ if decoupled else torch._fused_adam_
        with torch.no_grad():
            update(
                parameters, gradients, first, second, [], steps, lr=lr, beta1=beta1, beta2=beta2,
                weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip


class _HostAdam:
    """Adam on the host's memory: not the device's time, and nothing is computed."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


class _Unknown:
    """A library of kernels without a stand-in: what is called of it says its name."""

    def __init__(self, library: str) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        from .shim import CannotRehearseError

        raise CannotRehearseError(
            "DeepSpeed's %s.%s has no stand-in" % (self._library, name),
            "train with torch's own optimizer",
        )


def _deepspeed_alone(module: Any) -> None:
    """Have a script that nobody launched find one rank, as under ``deepspeed`` with one device."""

    def alone(distributed_port: int = 29500, verbose: bool = True) -> None:
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(ranks, MASTER_PORT=str(distributed_port))

    module.mpi_discovery = alone


def _weights(name: str) -> Callable[[Any], None]:
    """Return a function of ``checkpoints``, which imports torch where it is called."""

    def change(module: Any) -> None:
        from . import checkpoints

        getattr(checkpoints, name)(module)

    return change


def _timm_weights(module: Any) -> None:
    """Leave models of timm as they were made: only values are read from its files."""
    module.load_pretrained = lambda *_, **__: None


# Module -> what is changed in it once it has been imported.
CHANGED: dict[str, Callable[[Any], None]] = {
    "deepspeed.comm.comm": _deepspeed_alone,
    "deepspeed.ops.op_builder.builder": _deepspeed_kernels,
    "diffusers.models.modeling_utils": _weights("of_diffusion"),
    "transformers.modeling_utils": _weights("of_shapes"),
    "timm.models._builder": _timm_weights,
}


def _is_script_asking() -> bool:
    """Whether the script imports a package itself: a library that looks for it is told no."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and "importlib" not in name and name != __file__:
            return "site-packages" not in name
        frame = frame.f_back
    return False


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for a package of ``STUBS`` that is not installed; the last of the finders."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a stub, None for everything else."""
        if name not in STUBS or not _is_script_asking():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Leave the making of the module to the import system."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill the stub."""
        STUBS[module.__name__](module)
        self._notes.add("%s is not installed: a stub stands in" % module.__name__)
