"""A Slurm controller of four made-up machines, for a test: no root, no daemon of the system's.

The machines are "cloud" nodes that nobody starts: what asks for them is only tested.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where `make test-exports` unpacks Debian's packages (`.ci/slurm`), or where they are installed.
TOOLS = os.environ.get("EXPORT_TOOLS", str(ROOT / ".venv-exports/bin/python"))
PREFIXES = (os.environ.get("SLURM_PREFIX", ""), str(Path(TOOLS).parents[1] / "slurm"), "/")
_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
NodeName=node[1-4] CPUs=96 RealMemory=1000000 Gres=gpu:a100:8 State=CLOUD
PartitionName=gpu Nodes=node[1-4] Default=YES MaxTime=INFINITE State=UP
"""
GPUS = "gpu:a100:8"
STARTING_S = 60.0


@dataclass(frozen=True)
class Slurm:
    """Where Slurm's programs and its configuration are."""

    prefix: Path
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LD_LIBRARY_PATH": libraries(self.prefix),
        }

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs."""
        return subprocess.run(
            [str(self.prefix / "usr/bin" / words[0]), *words[1:]],
            env={**os.environ, **self.variables, **(environ or {})}, cwd=cwd,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def tested(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Return what ``sbatch --test-only`` says."""
        return self.run("sbatch", "--test-only", *arguments, cwd=cwd)


def installed() -> Path | None:
    """Return the folder under which Slurm's programs are; None where there are none."""
    for prefix in PREFIXES:
        if prefix and (Path(prefix) / "usr/bin/sbatch").exists() and _controller(Path(prefix)):
            return Path(prefix)
    return None


def libraries(prefix: Path) -> str:
    """Return where an unpacked Slurm has its libraries."""
    folder = prefix / "usr/lib/x86_64-linux-gnu"
    return f"{folder}:{folder}/slurm-wlm"


def _controller(prefix: Path) -> str | None:
    return shutil.which("slurmctld-wlm", path=str(prefix / "usr/sbin")) or shutil.which(
        "slurmctld", path=str(prefix / "usr/sbin")
    )


@contextlib.contextmanager
def cluster(prefix: Path, folder: Path, *, more: str = "") -> Iterator[Slurm]:
    """Run a controller until it answers, and end it behind.

    ``more`` are lines of its configuration.
    """
    (folder / "state").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    plugins = prefix / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    text = _CONFIGURATION.format(port=port, folder=folder, plugins=plugins, user=_user())
    (folder / "slurm.conf").write_text(text + more)
    slurm = Slurm(prefix, folder)
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen(
            [str(_controller(prefix)), "-D", "-f", str(folder / "slurm.conf")],
            env={**os.environ, **slurm.variables}, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait(slurm, daemon)
            yield slurm
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)


def _wait(slurm: Slurm, daemon: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING_S
    # The controller knows the devices of machines that never registered once it is told of them.
    while slurm.run("scontrol", "update", "NodeName=node[1-4]", f"Gres={GPUS}").returncode:
        if daemon.poll() is not None or time.monotonic() > until:
            raise RuntimeError((slurm.folder / "log").read_text()[-2000:])
        time.sleep(0.1)


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
