"""Memory that the job holds and does not touch: what a limit with swap would give to others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from advisor.advice.facts import Facts
from advisor.advice.record import Advice, How
from advisor.collectors.recording import Recording
from advisor.domain import QUANTILES
from advisor.planners.core.units import GIB, MIB
from advisor.planners.harvesting.working_set import (
    FAULT_S,
    MOST_LOSS,
    Harvest,
    TouchedWindow,
    harvest,
)

# The memory is taken by a control group's soft limit, to swap on a local solid-state disk.
_SWAP: Final = "nvme"
# Less than this share of what it holds is not worth a limit.
_LEAST_SHARE: Final = 0.05
# One standard deviation of the logarithm of the loss: latencies are known by order of magnitude.
_LOSS_LOG_SD: Final = math.log(2.0)


def advise(facts: Facts) -> Iterable[Advice]:
    """Offer a soft limit where the recording says how much memory was touched.

    On the machine of the recording, whose memory is shared; ``advisor profile --working-set``.
    """
    recording = facts.recording
    if recording is None or not facts.is_here or facts.has_accelerators:
        return
    windows = windows_of(recording)
    found = harvest(windows, fault_s=FAULT_S[_SWAP]) if windows else None
    if found is None or found.harvested_bytes < _LEAST_SHARE * found.resident_bytes:
        return
    yield _advice(facts, recording, found, len(windows))


def windows_of(recording: Recording) -> list[TouchedWindow]:
    """Return the windows of its ordinary running.

    Those that began after the first step, where there are steps, and in which memory hardly grew.
    """
    begin_s = 0.0 if recording.step_time is None else recording.startup_s or 0.0
    return [
        TouchedWindow(
            window_s=one.window_s,
            touched_bytes=one.touched_bytes,
            resident_bytes=one.resident_bytes,
        )
        for one in recording.touched
        if one.t_s - one.window_s >= begin_s and one.is_steady
    ]


def _advice(facts: Facts, recording: Recording, found: Harvest, windows: int) -> Advice:
    host = recording.host
    memory = min(host.memory_bytes, host.memory_limit_bytes)
    # What is billed is what it takes most of: memory given back is worth nothing beside cores.
    cores = sum(one.cpu_s for one in recording.readings[-1:]) / max(recording.duration_s, 1e-9)
    before, after = (
        max(cores / max(host.cpu_limit, 1e-9), size / memory)
        for size in (found.resident_bytes, found.limit_bytes)
    )
    slower = 1.0 + found.loss_fraction
    spread = math.exp(QUANTILES[facts.now.cost_usd.coverage] * _LOSS_LOG_SD)
    limit = math.ceil(found.limit_bytes / MIB)
    return Advice(
        name="harvest-memory",
        source="harvesting",
        change=f"Let others have {found.harvested_bytes / GIB:.2g} GiB of its memory: it holds "
        f"{found.resident_bytes / GIB:.2g} GiB and touches {found.touched_bytes / GIB:.2g} GiB.",
        time_saved_h=None,
        cost_saved_usd=None,
        time_factor=slower,
        cost_factor=slower * min(after / before, 1.0),
        evidence="measured",
        rests_on=f"{windows} windows of up to {max(one.window_s for one in recording.touched):.0f}"
        f" s; pages untouched for {found.age_s:.2g} s come back at a loss of "
        f"{found.loss_fraction:.1%} ({found.loss_fraction / spread:.1%} to "
        f"{found.loss_fraction * spread:.1%}) from a solid-state disk; at most {MOST_LOSS:.1%} "
        "is allowed",
        condition="For what it did while it was recorded; what it touches later comes back as "
        "slowly, and the kernel may take other pages than the oldest. Pays where memory is shared "
        "or billed; a machine rented whole costs the same.",
        how=How(
            kind="flag",
            text=f"systemd-run --scope -p MemoryHigh={limit}M ...  # with swap on",
        ),
        details={
            "limit_bytes": found.limit_bytes,
            "resident_bytes": found.resident_bytes,
            "touched_bytes": found.touched_bytes,
            "harvested_bytes": found.harvested_bytes,
            "age_s": found.age_s,
            "loss_fraction": found.loss_fraction,
            "fault_s": FAULT_S[_SWAP],
        },
    )
