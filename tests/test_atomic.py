"""A writer may be killed at any moment: a reader finds the old content or the new one, whole."""

from __future__ import annotations

import ast
import errno
import functools
import itertools
import os
import signal
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run_records import run

from advisor.catalogue import snapshot as store
from advisor.catalogue.upkeep.download import RawStore
from advisor.collectors import atomic
from advisor.jobs.load import read_job, write_job
from advisor.jobs.runs import Actual, append_actual, read_actuals
from advisor.learned import registry, tasks
from advisor.learned.linear import Ridge
from advisor.records import collected as journal
from advisor.records import read_records, write_records

ROOT = Path(__file__).parents[1]
Write = Callable[[Path, int], object]
Read = Callable[[Path], object]


def killed_at(moment: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that kills itself before its ``moment``-th file operation.

    Python announces every operation on files to audit hooks before it is done; those of
    ``ctypes`` are counted as well, for the exchange of two folders has no wrapper.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event == "open" or event.startswith(("os.", "shutil.", "ctypes.dlsym")):
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


@functools.cache
def model(version: int) -> Ridge:
    rows = np.random.default_rng(version).uniform(1, 2, (20, 2))
    return Ridge(calibration_folds=2).fit(rows, rows.sum(axis=1), groups=np.arange(20) % 4)


def save_model(folder: Path, version: int) -> None:
    about: dict[str, Any] = {"version": version}
    registry.save(folder / "model", model(version), features=about, metrics=about, card="card")


def load_model(folder: Path) -> object:
    _, about, metrics = registry.load(folder / "model")
    assert about == metrics
    assert registry.features_of(folder / "model") == about
    return about["version"]


def update_catalogue(folder: Path, version: int) -> None:
    def write(snapshot: Path) -> None:
        (snapshot / "prices.csv").write_text(f"price\n{version}\n")
        store.write_manifest(snapshot, {"version": version})

    made = store.add(write, datetime(2026, 1, version, tzinfo=UTC), unlike=folder)
    assert made is not None
    store.use(made)


def used_catalogue(folder: Path) -> object:
    used = store.updated_folder()
    assert used is not None
    version = store.read_manifest(used)["version"]
    assert (used / "prices.csv").read_text() == f"price\n{version}\n"
    return version


def keep_answer(folder: Path, version: int) -> None:
    tasks._keep(folder / "answer.npy", np.full(1000, float(version)))


def kept_answer(folder: Path) -> object:
    answer = tasks._kept(folder / "answer.npy")
    assert answer is not None
    assert np.ptp(answer) == 0
    return int(answer[0])


def pack(folder: Path, version: int) -> None:
    journal.pack([{"version": version}] * 50, folder / "runs.jsonl.gz")


def unpack(folder: Path) -> object:
    versions = [row["version"] for row in journal.unpack(folder / "runs.jsonl.gz")]
    assert len(versions) == 50
    return versions[0]


def download(folder: Path, version: int) -> None:
    with RawStore(folder).writing("aws", "prices.csv") as file:
        for _ in range(3):
            file.write(b"%d" % version * 100_000)


def downloaded(folder: Path) -> object:
    content = (folder / "aws" / "prices.csv").read_bytes()
    assert len(content) == 300_000
    return int(chr(content[-1]))


WRITERS: dict[str, tuple[Write, Read]] = {
    "a file": (
        lambda folder, version: atomic.write_text(folder / "x.json", f"{version}"),
        lambda folder: int((folder / "x.json").read_text()),
    ),
    "a trained model": (save_model, load_model),
    "the catalogue": (update_catalogue, used_catalogue),
    "an answer kept for --resume": (keep_answer, kept_answer),
    "collected runs": (pack, unpack),
    "a download": (download, downloaded),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def hold_at_every_moment(tmp_path: Path, write: Write, read: Read) -> int:
    """Kill the second writing before each of its operations; return how many there were."""
    for moment in itertools.count(1):
        folder = tmp_path / str(moment)
        folder.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(folder)
        write(folder, 1)
        assert read(folder) == 1
        was_killed = killed_at(moment, functools.partial(write, folder, 2))
        assert read(folder) in (1, 2), f"neither after a kill before operation {moment}"
        write(folder, 3)
        assert read(folder) == 3
        left = [p for p in folder.rglob(".*") if p.name.endswith((".partial", ".previous"))]
        assert left == [], f"left behind after a kill before operation {moment}"
        if not was_killed:
            assert moment > 5
            return moment
    raise AssertionError


@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_writer_leaves_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    hold_at_every_moment(tmp_path, *WRITERS[name])


def test_also_where_folders_cannot_trade_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two renames then, and between them the old model is read under its other name."""
    monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    hold_at_every_moment(tmp_path, save_model, load_model)


def test_a_killed_writer_of_a_job(tmp_path: Path, make_job: Callable[..., Any]) -> None:
    jobs = {version: make_job(name=f"job {version}") for version in (1, 2, 3)}
    hold_at_every_moment(
        tmp_path,
        lambda folder, version: write_job(jobs[version], folder / "job.json"),
        lambda folder: int(read_job(folder / "job.json").name[-1]),
    )


def test_a_killed_import_of_records(tmp_path: Path) -> None:
    rows = [run(record_id=str(number)) for number in range(30)]
    hold_at_every_moment(
        tmp_path,
        lambda folder, version: write_records(folder / "x.jsonl.gz", rows[: 10 * version]),
        lambda folder: len(read_records(folder / "x.jsonl.gz")) // 10,
    )


def test_a_journal_never_loses_a_line_that_was_written(tmp_path: Path) -> None:
    def actual(number: int) -> Actual:
        return Actual(run="r", provider="p", instance_type="t", count=1, step_s=number)

    for moment in itertools.count(1):
        folder = tmp_path / str(moment)
        append_actual(folder, actual(1))
        was_killed = killed_at(moment, functools.partial(append_actual, folder, actual(2)))
        append_actual(folder, actual(3))
        steps = [one.step_s for one in read_actuals(folder, "r")]
        assert steps in ([1, 3], [1, 2, 3])
        if not was_killed:
            break


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"whole\ncut sh")
    atomic.append_line(path, b"next\n")
    assert path.read_bytes() == b"whole\ncut sh\nnext\n"


def test_a_full_disk_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    atomic.append_line(path, b"whole\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        atomic.append_line(path, b"more than fits\n")
    assert path.read_bytes() == b"whole\n"


class TestManners:
    def test_a_failed_writing_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        atomic.write_text(path, "old")
        with pytest.raises(ZeroDivisionError), atomic.writing(path) as file:
            file.write(b"%d" % (1 // 0))
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["x"]

    def test_permissions_stay_or_are_as_asked(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        atomic.write_text(path, "secret", mode=0o600)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        atomic.write_text(path, "still")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        atomic.write_text(path, "open", mode=0o644)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "real")
        atomic.write_text(tmp_path / "link", "1")
        atomic.write_text(tmp_path / "link", "2")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "2"

    def test_a_device_is_written_to_directly(self) -> None:
        atomic.write_text(Path(os.devnull), "gone")
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
        if Path("/dev/full").exists():
            with pytest.raises(OSError, match="No space"):
                atomic.write_text(Path("/dev/full"), "too much")

    def test_a_living_writers_draft_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        with atomic.writing(path) as slow:
            slow.write(b"slow")
            atomic.write_text(path, "quick")
            assert path.read_text() == "quick"
        assert path.read_text() == "slow"
        assert os.listdir(tmp_path) == ["x"]

    def test_names_of_any_length(self, tmp_path: Path) -> None:
        for name in ("n" * 255, "\N{SNOWMAN}" * 85):
            atomic.write_text(tmp_path / name, name)
            assert (tmp_path / name).read_text() == name

    def test_a_model_that_is_replaced_while_it_is_read_is_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_model(tmp_path, 1)
        described = registry._description

        def meanwhile(folder: Path) -> dict[str, Any]:
            about = described(folder)
            monkeypatch.undo()
            save_model(tmp_path, 2)
            return about

        monkeypatch.setattr(registry, "_description", meanwhile)
        assert load_model(tmp_path) == 2


# Module -> why it may open files for writing itself.
# Programs that are run by hand.
PROGRAMS = ("lab/experiments/", "lab/speed/")
OWN_WRITERS = {
    "collectors/atomic.py": "the writer",
    "lab/data/fetch.py": "a part that a later call adds to",
    "lab/score/accuracy.py": "pages of this repository, in a checkout",
    "advisor/jobs/runs.py": "links a whole draft, so that another's journal is not replaced",
    "collectors/format/record_files.py": "append-only records with checksums",
    "collectors/run/recording_plan.py": "an anonymous file, gone when it is closed",
    "collectors/run/agent.py": "a few bytes rewritten in place, so that a full disk does no harm",
    "collectors/hooks/kept.py": "append-only records, inside the user's process",
    "lab/minicloud/limits.py": "files of the kernel",
    "collectors/hooks/rehearsal/checkpoints.py": "the empty file that stands for a checkpoint",
    "collectors/hooks/rehearsal/overlay.py": "files of the kernel",
    "collectors/hooks/rehearsal/shim.py": "what the compiler wrote, in the user's process",
    "collectors/derive/store.py": "the empty file that a run begins with",
    "advisor/learned/registry.py": "fills the folder that ``atomic`` gives it",
    "collectors/watch/benchmark.py": "a file to measure the disk with",
    "advisor/records/collected.py": "opens the journal to lock it",
    "advisor/catalogue/snapshot.py": "opens a file to lock it",
    "advisor/catalogue/upkeep/given.py": "unpacks into a temporary folder",
}


NAMES = {"write_text", "write_bytes", "touch", "replace", "rename", "renames", "link", "mkstemp",
         "NamedTemporaryFile"}  # fmt: skip


def writes(tree: ast.AST) -> list[int]:
    """Return the lines that open a file for writing, or rename one."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_open = name == "open" or (isinstance(node.func, ast.Name) and node.func.id == "open")
        if not is_open and name not in NAMES:
            continue
        owner = ast.unparse(node.func).rpartition(".")[0]
        texts = [a.value for a in ast.walk(node) if isinstance(a, ast.Constant)]
        if (
            (name in ("write_text", "write_bytes", "touch") and owner != "atomic")
            or (name in ("replace", "rename", "renames", "link") and owner in ("os", "shutil"))
            or (name == "rename" and owner != "os" and len(node.args) == 1 and not node.keywords)
            or (
                name == "replace"
                and owner.isidentifier()
                and len(node.args) == 1
                and not node.keywords
            )
            or (is_open and any(t in ("w", "wb", "x", "xb", "a", "ab", "r+b") for t in texts))
            or (owner == "os" and name == "open" and "O_CREAT" in ast.unparse(node))
            or name in ("mkstemp", "NamedTemporaryFile")
        ):
            found.append(node.lineno)
    return found


def test_nobody_else_writes_files_by_hand() -> None:
    by_hand = {}
    for folder in ("advisor", "lab", "collectors", "planners"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(("advisor/collectors/", "advisor/planners/")):
                continue
            lines = writes(ast.parse(path.read_text()))
            if lines and name not in OWN_WRITERS and not name.startswith(PROGRAMS):
                by_hand[name] = lines
    assert by_hand == {}


def test_the_scan_sees_a_writer() -> None:
    for code in ("p.write_text('x')", "open(p, 'w')", "p.open('wb')", "os.replace(a, b)",
                 "a.replace(b)", "os.open(p, os.O_CREAT)"):  # fmt: skip
        assert writes(ast.parse(code)), code
    assert not writes(ast.parse("atomic.write_text(p, 'x'); open(p); 'a'.replace('a', 'b')"))
