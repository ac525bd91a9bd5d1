"""Full disks, forbidden folders, no memory, damaged files: an error and a hint, no traceback.

Run as root where it can be: a file system of 16 KiB and one that is read-only are mounted.
Elsewhere a device that is always full and a folder without rights take their place.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import InProcess
from test_run_records import run

from advisor.collectors.errors import explain
from advisor.records import write_records

ROOT = Path(__file__).parents[1]
DESCRIBED = ["--layers", "2", "--hidden", "64", "--heads", "2"]


def advisor(
    *arguments: str, cwd: Path, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line from ``cwd`` behind some shell ``before``."""
    command = f'{before}\nexec "{sys.executable}" -m advisor.cli "$@"'
    return subprocess.run(
        ["bash", "-c", command, "advisor", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def assert_refused(done: subprocess.CompletedProcess[str], says: str = "") -> None:
    assert "Traceback" not in done.stderr + done.stdout
    # Before it come notes, and how much there was to do.
    lines = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert "hint" in lines[lines.index("error") :], done.stderr
    assert says in done.stderr
    assert done.returncode in (1, 2)


def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 KiB without a free block."""
    for folder in mounted(tmp_path / "full", "size=16k"):
        with pytest.raises(OSError, match="No space"):
            (folder / "fill").write_bytes(bytes(1 << 16))
        yield folder


@pytest.fixture
def readonly(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody may write to, root included."""
    yield from mounted(tmp_path / "readonly", "ro,size=16k")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    write_records(path, [run(record_id="a"), run(record_id="b")])
    return path


class TestFullDisk:
    def test_an_import_leaves_nothing(self, full: Path, records: Path) -> None:
        done = advisor(
            "runs", "import", "records", str(records), "--out", str(full / "x"), cwd=full
        )
        assert_refused(done, "No space left on device")
        assert os.listdir(full) == ["fill"]

    def test_a_job_is_not_saved(self, full: Path) -> None:
        job = str(full / "job.json")
        done = advisor("predict", *DESCRIBED, "--gpu", "L4", "--save-job", job, cwd=full)
        assert_refused(done, "No space left on device")
        assert os.listdir(full) == ["fill"]

    def test_nothing_is_collected(self, full: Path) -> None:
        assert_refused(advisor("collect", "--out", str(full / "c"), cwd=full), "No space")

    def test_answers_go_nowhere(self, tmp_path: Path) -> None:
        """``/dev/full`` as the output: every write of an answer fails."""
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        for arguments in (["catalogue", "info"], ["--version"], ["--help"]):
            done = advisor(*arguments, cwd=tmp_path, before="exec > /dev/full")
            assert_refused(done, "No space left on device")
            assert "Exception ignored" not in done.stderr


class TestForbidden:
    def test_an_import(self, readonly: Path, records: Path) -> None:
        target = str(readonly / "x.jsonl")
        done = advisor("runs", "import", "records", str(records), "--out", target, cwd=readonly)
        assert_refused(done, "Read-only file system")
        assert "x.jsonl" in done.stderr
        assert ".partial" not in done.stderr

    def test_a_recording_and_a_collection(self, readonly: Path) -> None:
        done = advisor("profile", "-q", "--runs", str(readonly / "r"), "/bin/true", cwd=readonly)
        assert_refused(done, "Read-only file system")
        assert_refused(advisor("collect", "--out", str(readonly / "c"), cwd=readonly), "Read-only")

    def test_answers_need_no_cache(self, readonly: Path) -> None:
        """A home and a cache that cannot be written to keep nobody from an answer."""
        home = {"HOME": str(readonly), "XDG_CACHE_HOME": str(readonly)}
        done = advisor("predict", *DESCRIBED, "--gpu", "L4", cwd=readonly, **home)
        assert done.returncode == 0, done.stderr

    def test_an_update(self, readonly: Path, tmp_path: Path) -> None:
        given = tmp_path / "files" / "lambda"
        given.mkdir(parents=True)
        (given / "vms.csv").write_text("InstanceType,AcceleratorName\n")
        done = advisor(
            "catalogue", "update", "--from", str(given.parent), cwd=tmp_path,
            XDG_CACHE_HOME=str(readonly),
        )  # fmt: skip
        assert_refused(done)


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
