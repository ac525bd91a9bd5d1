"""Full disks, forbidden folders, no memory, damaged files: an error and a hint, no traceback.

A file system of 16 KiB and one that is read-only are mounted where the command alone sees them:
its end, of whatever kind, is theirs. Where that is not allowed, a device that is always full is
what is left.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import InProcess
from test_run_records import run

from advisor.collectors.errors import explain
from advisor.records import write_records

ROOT = Path(__file__).parents[1]
DESCRIBED = ["--layers", "2", "--hidden", "64", "--heads", "2"]


# Mounts that end with the process that made them.
OWN_MOUNTS = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def advisor(
    *arguments: str,
    cwd: Path,
    before: str = "",
    after: str = "",
    within: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command line from ``cwd`` between some shell ``before`` and ``after``."""
    command = f'{before}\n"{sys.executable}" -m advisor.cli "$@"\ncode=$?\n{after}\nexit $code'
    return subprocess.run(
        [*within, "bash", "-c", command, "advisor", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A file system that is there while a command runs, for that command."""

    folder: Path
    options: str
    filling: str = ":"

    def advisor(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in it; what it holds afterwards is listed beside it."""
        folder = shlex.quote(str(self.folder))
        return advisor(
            *arguments,
            cwd=self.folder,
            before=f"mount -t tmpfs -o {self.options} tmpfs {folder} && cd {folder} || exit 99\n"
            f"{self.filling}",
            after=f"ls -A > {folder}.left",
            within=OWN_MOUNTS,
            **environment,
        )

    def left(self) -> list[str]:
        """Return what the last command left in it."""
        return Path(f"{self.folder}.left").read_text().split()


def assert_refused(done: subprocess.CompletedProcess[str], says: str = "") -> None:
    assert "Traceback" not in done.stderr + done.stdout
    # Before it come notes, and how much there was to do.
    lines = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert "hint" in lines[lines.index("error") :], done.stderr
    assert says in done.stderr
    assert done.returncode in (1, 2)


def file_system(folder: Path, **fields: str) -> FileSystem:
    folder.mkdir()
    mount = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    return FileSystem(folder=folder, **fields)


@pytest.fixture
def full(tmp_path: Path) -> FileSystem:
    """A file system of 16 KiB without a free block."""
    filling = "! head -c 65536 /dev/zero > fill 2> /dev/null || exit 98"
    return file_system(tmp_path / "full", options="size=16k", filling=filling)


@pytest.fixture
def readonly(tmp_path: Path) -> FileSystem:
    """A file system that nobody may write to, root included."""
    return file_system(tmp_path / "readonly", options="ro,size=16k")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    write_records(path, [run(record_id="a"), run(record_id="b")])
    return path


class TestFullDisk:
    def test_an_import_leaves_nothing(self, full: FileSystem, records: Path) -> None:
        done = full.advisor("runs", "import", "records", str(records), "--out", "x")
        assert_refused(done, "No space left on device")
        assert full.left() == ["fill"]

    def test_a_job_is_not_saved(self, full: FileSystem) -> None:
        done = full.advisor("predict", *DESCRIBED, "--gpu", "L4", "--save-job", "job.json")
        assert_refused(done, "No space left on device")
        assert full.left() == ["fill"]

    def test_nothing_is_collected(self, full: FileSystem) -> None:
        assert_refused(full.advisor("collect", "--out", "c"), "No space")

    def test_answers_go_nowhere(self, tmp_path: Path) -> None:
        """``/dev/full`` as the output: every write of an answer fails."""
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        for arguments in (["catalogue", "info"], ["--version"], ["--help"]):
            done = advisor(*arguments, cwd=tmp_path, before="exec > /dev/full")
            assert_refused(done, "No space left on device")
            assert "Exception ignored" not in done.stderr


class TestForbidden:
    def test_an_import(self, readonly: FileSystem, records: Path) -> None:
        done = readonly.advisor("runs", "import", "records", str(records), "--out", "x.jsonl")
        assert_refused(done, "Read-only file system")
        assert "x.jsonl" in done.stderr
        assert ".partial" not in done.stderr

    def test_a_recording_and_a_collection(self, readonly: FileSystem) -> None:
        done = readonly.advisor("profile", "-q", "--runs", "r", "/bin/true")
        assert_refused(done, "Read-only file system")
        assert_refused(readonly.advisor("collect", "--out", "c"), "Read-only")

    def test_answers_need_no_cache(self, readonly: FileSystem) -> None:
        """A home and a cache that cannot be written to keep nobody from an answer."""
        home = {"HOME": str(readonly.folder), "XDG_CACHE_HOME": str(readonly.folder)}
        done = readonly.advisor("predict", *DESCRIBED, "--gpu", "L4", **home)
        assert done.returncode == 0, done.stderr

    def test_an_update(self, readonly: FileSystem, tmp_path: Path) -> None:
        given = tmp_path / "files" / "lambda"
        given.mkdir(parents=True)
        (given / "vms.csv").write_text("InstanceType,AcceleratorName\n")
        cache = {"XDG_CACHE_HOME": str(readonly.folder)}
        assert_refused(
            readonly.advisor("catalogue", "update", "--from", str(given.parent), **cache)
        )


def test_the_working_folder_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for arguments in (["recommend", *DESCRIBED], ["profile", "/bin/true"]):
        gone.mkdir()
        done = advisor(*arguments, cwd=gone, before=f'rmdir "{gone}"')
        assert_refused(done, "the working folder no longer exists")


@pytest.mark.parametrize(
    "arguments", [["catalogue", "list"], ["predict", *DESCRIBED, "--gpu", "L4"]]
)
def test_no_memory(arguments: list[str], tmp_path: Path) -> None:
    """With so little address space Python begins, and some library or table does not fit."""
    seen = 0
    for kib in (60_000, 80_000, 120_000):
        done = advisor(*arguments, cwd=tmp_path, before=f"ulimit -v {kib}")
        # Python may fail before it has come to us, with a traceback of its own.
        assert "Traceback" not in done.stderr or "advisor/" not in done.stderr
        assert done.returncode != 0
        seen += "error: out of memory\nhint: " in done.stderr
    assert seen  # numpy's library of linear algebra may end the process itself, with a line


class TestDamagedFiles:
    def test_an_encrypted_archive(self, in_process: InProcess, tmp_path: Path) -> None:
        path = tmp_path / "prices.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("lambda/vms.csv", "secret")
        content = bytearray(path.read_bytes())
        content[6] |= 1  # the flag of encryption in the member's header ...
        content[content.index(b"PK\x01\x02") + 8] |= 1  # ... and in the directory
        path.write_bytes(content)
        assert_refused(in_process("catalogue", "update", "--from", str(path), cwd=tmp_path))

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_an_archive_that_was_cut_off(
        self, in_process: InProcess, tmp_path: Path, share: float
    ) -> None:
        path = tmp_path / "prices.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("lambda/vms.csv", os.urandom(2000).hex())
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert_refused(in_process("catalogue", "update", "--from", str(path), cwd=tmp_path))

    def test_records_that_were_cut_off(
        self, in_process: InProcess, tmp_path: Path, records: Path
    ) -> None:
        path = tmp_path / "runs.jsonl.gz"
        path.write_bytes(gzip.compress(records.read_bytes())[:-20])
        assert_refused(in_process("evaluate", "--data", str(path), cwd=tmp_path))

    def test_two_runs_are_too_few_to_evaluate(
        self, in_process: InProcess, tmp_path: Path, records: Path
    ) -> None:
        done = in_process(
            "evaluate", "--data", str(records), "--target", "time", "--model", "ridge",
            cwd=tmp_path,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert "error: no split can be made" in done.stderr
        assert done.returncode == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), "x: No space left"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "x"), "x: Read-only"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x"), "x: Permission"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (MemoryError(), "out of memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "out of memory"),
        (RuntimeError("can't start new thread"), "out of memory"),
        (RecursionError(), "nested too deeply"),
        (EOFError(), "damaged"),
        (zipfile.BadZipFile("bad magic"), "bad magic"),
        (gzip.BadGzipFile("bad magic"), "bad magic"),
        (RuntimeError("File 'x' is encrypted, password required"), "encrypted"),
    ],
)
def test_what_the_system_refuses_is_explained(error: Exception, says: str) -> None:
    found = explain(error)
    assert found is not None
    assert says in str(found)
    assert found.hint
    assert found.exit_code == 1


def test_a_defect_of_ours_is_not_hidden() -> None:
    for error in (ValueError("x"), KeyError("x"), TypeError("x"), RuntimeError("x"),
                  ImportError("no module named x")):  # fmt: skip
        assert explain(error) is None


def test_what_the_security_page_names_is_there() -> None:
    named = re.findall(r"`((?:tests|collectors)/[\w/.]+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
