"""Limits on what a script uses of a machine: part of the job, wherever it runs.

What the script or its environment set stays on another machine; what a framework took because
that many cores were there grows with the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What takes each limit away, in words.
_CALL: Final = "torch.set_num_threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that a script ran under; None where there was none.

    Attributes
    ----------
    threads : int or None
        Threads that one process computes with, where the script or its environment set them.
    threads_source : str
        Who set them: ``"torch.set_num_threads"``, ``"OMP_NUM_THREADS"``.
    cores : float or None
        Cores that all processes together may use, where the machine has more. [cores]
    cores_source : str
        Who took the others away: ``"its CPU affinity"``, ``"a CPU quota"``.
    """

    threads: int | None = None
    threads_source: str = ""
    cores: float | None = None
    cores_source: str = ""

    def compute_threads(self, processes: int = 1) -> float | None:
        """Return the cores that so many processes can compute with; None without a limit.

        Examples
        --------
        >>> Limits(threads=2, cores=3.0).compute_threads(2)
        3.0
        """
        known = [] if self.threads is None else [float(self.threads * processes)]
        known += [] if self.cores is None else [self.cores]
        return min(known, default=None)

    def notes(self) -> tuple[str, ...]:
        """Return in words what is kept on other machines, and that lifting it may help."""
        found = []
        if self.threads is not None:
            threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
            found.append(
                f"the script computes with {threads} ({self.threads_source}), on every machine; "
                "lifting this limit may help: change it and profile again"
            )
        if self.cores is not None:
            cores = "1 core" if self.cores == 1 else f"{self.cores:g} cores"
            found.append(
                f"the script is kept to {cores} ({self.cores_source}), on every machine; "
                "lifting this limit may help: profile again without it"
            )
        return tuple(found)


def limits_of(fact: Mapping[str, Any], logical_cpus: int, cpu_limit: float) -> Limits:
    """Return the limits by what the hooks saw in the script's process.

    Parameters
    ----------
    cpu_limit : float
        What the profiler itself may use: affinity and quota. [cores]
    """
    threads, source = _threads(fact)
    affinity = fact.get("affinity", logical_cpus)
    cores = min(float(affinity), cpu_limit)
    if not fact or cores >= logical_cpus:
        return Limits(threads=threads, threads_source=source)
    return Limits(
        threads=threads,
        threads_source=source,
        cores=cores,
        cores_source="its CPU affinity" if affinity <= cpu_limit else "a CPU quota",
    )


def _threads(fact: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the threads that somebody set, and who; a value without effect is none."""
    threads = fact.get("threads")
    if threads is None:
        return None, ""
    if fact.get("called") == threads:
        return threads, _CALL
    for name, value in fact.get("environment", {}).items():
        if value == threads:
            return threads, name
    return None, ""
