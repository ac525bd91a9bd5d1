"""A machine on which an export is started: its shell, packages that pip says it has, its devices.

Nothing is installed and nothing trains. ``pip`` and ``git`` only note what they were asked for; a
launcher is there once its package is, and notes its arguments, which the real launchers' parsers
read afterwards (``export_tools/check.py``). Scripts are stubs with parsers of their own.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Packages that the stand-in for pip can install, and the launchers that come with them.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torchrun",), "accelerate": ("accelerate",), "deepspeed": ("deepspeed",),
    "transformers": (), "megatron-core": (),
}  # fmt: skip
_NOTE = """
import json, os, sys
with open(os.environ["NOTES"], "a") as notes:
    seen = {name: os.environ.get(name) for name in ("MASTER_ADDR",)}
    notes.write(json.dumps({"program": sys.argv[1], "arguments": sys.argv[2:],
                            "folder": os.getcwd(), "environment": seen}) + "\\n")
"""
_PIP = """
import os, re, sys
root, known, (verb, *words) = os.environ["INSTALLED"], sys.argv[1].split(), sys.argv[2:]
def name_of(requirement): return re.split("[=<>]", requirement)[0]
if verb == "show":
    sys.exit(not all(os.path.exists(f"{root}/{name_of(one)}") for one in words if one[0] != "-"))
assert verb == "install", verb
if words[0] == "-r":
    words = open(words[1]).read().split()
for one in map(name_of, words):
    if one not in known:
        sys.exit(f"ERROR: No matching distribution found for {one}")
    open(f"{root}/{one}", "w").close()
"""


@dataclass(frozen=True)
class Machine:
    """A folder with the programs that a machine has, and ``job``, where the script lies."""

    root: Path
    devices: int

    @property
    def job(self) -> Path:
        """The folder of the job."""
        return self.root / "job"

    @property
    def started(self) -> list[dict[str, Any]]:
        """What was started, in order."""
        notes = self.root / "notes"
        if not notes.exists():
            return []
        return [json.loads(line) for line in notes.read_text().splitlines()]

    @property
    def installed(self) -> set[str]:
        """Packages that are there."""
        return {path.name for path in (self.root / "installed").iterdir()}

    def run(self, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a shell's text in the job's folder."""
        return subprocess.run(
            ["bash", "-c", shell], cwd=self.job, env=self.environment | environment, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """All variables that are set."""
        return {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin", "NOTES": str(self.root / "notes"),
            "INSTALLED": str(self.root / "installed"), "DEVICES": str(self.devices),
            "HOME": str(self.root),
        }  # fmt: skip


def machine(
    root: Path, *, script: str, devices: int, has: Sequence[str] = (), needs: Sequence[str] = ()
) -> Machine:
    """Make a machine with packages, and a job's folder with its script.

    ``needs``: packages that the launchers of torch want to find, as the script imports them.
    """
    for name in ("bin", "job", "installed"):
        (root / name).mkdir(parents=True)
    for name in has:
        (root / "installed" / name).touch()
    (root / "note.py").write_text(_NOTE)
    (root / "pip.py").write_text(_PIP)
    (root / "job" / "train.py").write_text(script)
    plain = f"exec {sys.executable} -S"
    pip = f"{plain} {root}/pip.py '{' '.join(PACKAGES)}'"
    _program(root, "python", f'if [ "$1 $2" = "-m pip" ]; then shift 2; {pip} "$@"; fi\n'
             f'{plain} "$@"')  # fmt: skip
    _program(root, "git", 'for last; do :; done; folder="$(basename "$last")"\n'
             f'mkdir "$folder"; cp {root}/job/train.py "$folder/pretrain_gpt.py"')  # fmt: skip
    _program(root, "scontrol", "echo node-1; echo node-2")
    _program(root, "srun", '[ "$1" = --ntasks-per-node=1 ] || exit 2; shift; exec "$@"')
    for package, launchers in PACKAGES.items():
        for name in launchers:
            wanted = "".join(
                f'[ -e "$INSTALLED/{one}" ] || {{ echo "no {one}" >&2; exit 127; }}\n'
                for one in (package, *needs)
            )
            _program(root, name, f'{wanted}{plain} {root}/note.py {name} "$@"')
    return Machine(root=root, devices=devices)


def _program(root: Path, name: str, text: str) -> None:
    path = root / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def started_script(on: Machine, script: str, arguments: Sequence[str], folder: str) -> None:
    """Run a script as its launcher would, with its arguments.

    Raises CalledProcessError where its parser refuses them.
    """
    environment = {**on.environment, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", script, *arguments], cwd=folder, env=environment, check=False,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
