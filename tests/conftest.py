"""Jobs that the tests of prediction share: described in numbers, no file, no profile."""

import contextlib
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from advisor.catalogue import Catalogue, TypeColumns, catalogue
from advisor.catalogue.snapshot import cache_folder, read_snapshot
from advisor.cli import main
from advisor.collectors.format.recording import Host, HostBenchmark
from advisor.estimate import Predictor
from advisor.estimate import predictor as predictor_module
from advisor.jobs.job import Feed, Job, Measured
from advisor.machines import catalogue_fleet
from advisor.planners.core import Operator, Operators, Work

InProcess = Callable[..., subprocess.CompletedProcess[str]]

# What the user of this machine has fitted, downloaded, overridden or set is not what is tested,
# and no process of tests sees what another one keeps.
_OWN = Path(tempfile.mkdtemp(prefix="advisor-tests-"))
for kind in ("DATA", "CACHE", "CONFIG"):
    os.environ[f"XDG_{kind}_HOME"] = str(_OWN / kind.lower())
for name in [one for one in os.environ if one.startswith("ADVISOR_") and one != "ADVISOR_SHARED"]:
    del os.environ[name]
# Most of what a test installs is never imported: it is compiled when it is.
os.environ["PIP_NO_COMPILE"] = "1"


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_OWN, ignore_errors=True)


# What starts programs and looks at them from outside can be looked at too late on a machine that
# stands still for seconds: it is tried again, and named in the summary. Nothing else is.
_OUTSIDE = {"browser", "collecting", "multiprocessing", "socket", "subprocess", "threading"}


# Files of the most seconds, first: a process that comes to one last leaves the others idle.
_LONG = (
    "installed", "rehearsal", "retraining", "epsilon_units", "measured_cluster",
    "collectors_cases", "plan_recorded", "predictors", "ranks", "adding_a_row",
    "minicloud_collect", "plain_words", "collectors_waiting",
    "one_estimate", "mixed", "own_layouts", "fifteen_systems", "main_path", "collectors_faults",
    "descriptors", "one_price", "blind_fits", "habits", "swapping_columns", "secret_canaries",
    "notebook", "within", "renting", "atomic", "catalogue_extension", "pruning", "runs_believed",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of files that run other programs: two more tries. Long files come first."""
    for item in items:
        if isinstance(item, pytest.Function) and _looks_outside(item.module):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
    first = {f"test_{name}": at for at, name in enumerate(_LONG)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected to the end: no pass of the collector looks at it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many targets of ``advisor export`` were run (``test_export_runs.py``)."""
    passed = terminalreporter.stats.get("passed", [])
    ran = {value for one in passed for name, value in one.user_properties if name == "export_run"}
    if ran:
        from advisor.export import TARGETS

        terminalreporter.write_line(f"exports run: {len(ran)} of {len(TARGETS)}")


@functools.cache
def _looks_outside(module: ModuleType) -> bool:
    names = vars(module).values()
    modules = {one.__name__ for one in names if isinstance(one, ModuleType)}
    return bool(_OUTSIDE & (modules | {getattr(one, "__module__", "") for one in names}))


# No time limit a test: machines are shared and noisy. ``ci``, the same examples in every run;
# ``thorough``, new ones: HYPOTHESIS_PROFILE=thorough, as `make test-all` sets it.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Stacks that differ in kind: none, Megatron, ZeRO, sharding of every step, plain copies.
_KINDS = (None, "nemo", "deepspeed", "torchtitan", "ddp")


def slow_unless_kind(stack: str | None) -> tuple[pytest.MarkDecorator, ...]:
    """Return the mark of a test that asks of a stack what another of its kind is asked too."""
    return () if stack in _KINDS else (pytest.mark.slow,)


# ResNet-50 at 224 x 224: 4.1 GFLOP multiply-adds forward a sample (He et al., 2016, table 1,
# times two), 25.6 M parameters; activation traffic as torchvision's model moves it.
_SAMPLE = {
    "aten::convolution": ("convolution", 8.2e9, 37e6, 53),
    "aten::native_batch_norm": ("normalisation", 3e7, 75e6, 53),
    "aten::relu": ("elementwise", 1e7, 50e6, 49),
}
_PARAMETERS = 25_600_000


def resnet50(micro_batch: int = 32) -> Work:
    """One training step of ResNet-50 as operators."""
    weights = 4.0 * _PARAMETERS
    operators = []
    for name, (kind, flop, moved, count) in _SAMPLE.items():
        fixed = weights if kind == "convolution" else 0.0
        for phase, times in (("forward", 1), ("backward", 2)):
            operators.append(
                Operator(
                    name=name if times == 1 else f"{name}_backward",
                    kind=kind,  # type: ignore[arg-type]
                    phase=phase,  # type: ignore[arg-type]
                    count=count * times,
                    flop=flop * micro_batch * times,
                    bytes=(moved * micro_batch + fixed) * times,
                    fixed_bytes=fixed * times,
                )
            )
    operators.append(
        Operator(
            name="aten::_foreach_add_",
            kind="optimizer",
            phase="optimizer",
            count=20,
            flop=4.0 * _PARAMETERS,
            bytes=5 * weights,
            fixed_bytes=5 * weights,
        )
    )
    return Work(
        operators=Operators.of(operators),
        micro_batch=micro_batch,
        parameters=_PARAMETERS,
        trainable_parameters=_PARAMETERS,
        parameter_bytes=weights,
        optimizer_state_bytes=weights,
        saved_bytes_per_sample=90e6,
        input_bytes_per_sample=6e5,
    )


def laptop() -> Host:
    """A two-core machine without a GPU, its rates as such machines measure."""
    return Host(
        cpu_model="AMD EPYC",
        logical_cpus=2,
        physical_cpus=2,
        cpu_limit=2.0,
        memory_bytes=24 << 30,
        memory_limit_bytes=24 << 30,
        gpus=(),
        system="Linux x86_64",
        python_version="3.11",
        torch_version="2.13",
        benchmark=HostBenchmark(
            matmul_flop_per_s=2e11,
            matmul_one_core_flop_per_s=1.05e11,
            copy_bytes_per_s=2e10,
            copy_one_core_bytes_per_s=1.4e10,
            scalar_score=25_000.0,
            disk_read_bytes_per_s=None,
            measured_at="2026-11-21T00:00:00Z",
        ),
    )


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    """Return a maker of ResNet-50 jobs; keywords replace fields of job, feed or measurement."""

    def make(**changes: Any) -> Job:
        feed: dict[str, Any] = {
            "workers": 8,
            "cpu_s_per_sample": None,
            "wait_s": 0.0,
            "sample_bytes": 6e5,
            "dataset_samples": 1_281_167,
            "idle_s_per_sample": 0.0,
        }
        measured: dict[str, Any] = {
            "step_s": 8.0,
            "log_sd": 0.03,
            "host": laptop(),
            "threads": 2,
            "device": "cpu",
        }
        for record in (feed, measured):
            record |= {name: changes.pop(name) for name in list(changes) if name in record}
        fields: dict[str, Any] = {
            "name": "resnet50", "work": resnet50(), "program": None, "global_batch": 256,
            "total_steps": 450_000.0, "total_source": "given", "peak_rss_bytes": 5 << 30,
            "recorded_batch": 32,
        }  # fmt: skip
        return Job(feed=Feed(**feed), measured=Measured(**measured), **(fields | changes))

    return make


@pytest.fixture(scope="session", autouse=True)
def _leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The last to end of a process of tests: no mount of theirs is left, and no program."""
    yield
    if sys.platform != "linux":
        return
    ours = str(tmp_path_factory.getbasetemp()), str(_OWN)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert not [one for one in mounts if one.startswith(ours)]
    until = time.monotonic() + 10.0
    while (running := _running()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not running


def _running() -> list[str]:
    """Return what other processes run that a test has started, told by their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(_OWN).encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    # Python's own, which end with the process that they serve.
    return [one for one in found if one and "multiprocessing" not in one]


def pytest_runtest_setup() -> None:
    """Have torch draw the same numbers for a test, whatever was drawn before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


_FLEETS_KEPT = 8


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """Every question reads the catalogue's tables: here the same files are read once a process."""
    snapshots: dict[tuple[object, ...], Catalogue] = {}
    fleets: dict[tuple[int, int], tuple[Catalogue, TypeColumns]] = {}

    def kept_snapshot(folder: Path, bundled: Path, kind: type[Catalogue]) -> Catalogue:
        if folder != bundled:
            return read_snapshot(folder, bundled, kind)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        key = cache_folder(), *((path, path.stat().st_mtime_ns) for path in files)
        if key not in snapshots:
            snapshots[key] = read_snapshot(folder, bundled, kind)
        return snapshots[key]

    def kept_fleet(known: Catalogue) -> TypeColumns:
        key = id(known.types), id(known.accelerators)
        if key not in fleets:
            fleets[key] = known, catalogue_fleet(known)
            if len(fleets) > _FLEETS_KEPT:
                del fleets[next(iter(fleets))]
        return fleets[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "read_snapshot", kept_snapshot)
        patch.setattr(predictor_module, "catalogue_fleet", kept_fleet)
        yield


@pytest.fixture(scope="session")
def predictor() -> Predictor:
    """The predictor that the verbs use: the bundled catalogue, the shipped models."""
    return Predictor()


@pytest.fixture(scope="session")
def physics() -> Predictor:
    """The analytic estimate alone."""
    return Predictor(learned=None)


@pytest.fixture(scope="session")
def asking() -> Predictor:
    """The analytic estimate on the bundled catalogue as it is published."""
    return Predictor(Catalogue.load(with_overrides=False), learned=None)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """The command line as its program runs it, in this process, which has imported everything."""

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["advisor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = int(ended.value.code or 0)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def warm_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours who cost waiting and nothing else: no cold caches."""
    monkeypatch.setattr("advisor.collectors.format.contention.LEFT_OVER", 0.0)
