"""Speed of one vCPU: fill the holes between the measured instance types, and say how.

CoreMark was run with all vCPUs busy and divided by their number, so hyperthreads and whole cores
compare. A hole is filled by the first rule that applies; the errors are those of measured types
held out (``benchmarks/catalogue_core_speed.py``, 2026-11-21):

1. the median of its family, e.g. ``m5`` of ``m5.large`` (median error 2 %, 90th percentile 8 %)
2. other benchmarks of the type (6-9 %, 19-25 %, ``speed_scores``), or of its family
3. the median of the types with its processor (5 %, 46 %: a vCPU may be a core or half of one)
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

import numpy as np

from advisor.catalogue.columns import Floats, Texts
from advisor.catalogue.nouns import SpeedSource

_NOISE = re.compile(
    r"\(r\)|\(tm\)|intel|amd|arm|xeon|platinum|gold|epyc|cpu|processor|\d+-core|\d+ core"
    r"|@?\s*[\d.]+ ?[gm]hz|\s",
    re.IGNORECASE,
)
_AZURE_SIZE = re.compile(r"(?<=[A-Z])[\d-]+")
_SEPARATOR = re.compile(r"[.\-_]")


def processor(model: str) -> str:
    """Reduce a processor's name to what tells it from another.

    >>> processor("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz")
    '8370c'
    >>> processor("AMD EPYC 9R45 96-Core")
    '9r45'
    """
    return _NOISE.sub("", model).casefold()


def family(provider: str, name: str) -> str:
    """Return the provider's family of a type: the letters and generation, without the size.

    >>> family("aws", "m5.large"), family("gcp", "n2-standard-8")
    ('m5', 'n2')
    >>> family("azure", "Standard_D8s_v5")
    'Ds_v5'
    """
    if provider == "azure":
        return _AZURE_SIZE.sub("", name.removeprefix("Standard_"), count=1)
    return _SEPARATOR.split(name, maxsplit=1)[0]


def fill(
    provider: Texts, name: Texts, cpu_model: Texts, measured: Floats, converted: Floats
) -> tuple[Floats, Texts]:
    """Return the speed of every type and where it comes from.

    Parameters
    ----------
    provider, name, cpu_model : Texts, shape (types,)
    measured : Floats, shape (types,)
        CoreMark per vCPU, NaN for a hole.
    converted : Floats, shape (types,)
        The same from other benchmarks of the type (``speed_scores``), NaN where none was run.

    Returns
    -------
    core_speed : Floats, shape (types,)
    source : Texts, shape (types,)
        A ``SpeedSource`` each.
    """
    providers, names = provider.tolist(), name.tolist()
    reduced = {model: processor(model) for model in set(cpu_model.tolist())}
    models = [reduced[model] or None for model in cpu_model.tolist()]
    own_model = [(p, m) if m else None for p, m in zip(providers, models, strict=True)]
    own_family = [(p, family(p, n)) for p, n in zip(providers, names, strict=True)]
    speed = measured.copy()
    source = np.where(np.isnan(measured), "unknown", "measured").astype("U24")

    def complete(found: Floats, label: SpeedSource) -> None:
        holes = np.isnan(speed) & ~np.isnan(found)
        speed[holes] = found[holes]
        source[holes] = label

    complete(_medians(own_family, speed), "same family")
    complete(converted, "other benchmark")
    complete(_medians(own_family, speed), "same family")
    complete(_medians(own_model, speed), "same cpu model")
    complete(_medians(models, speed), "same cpu model")
    return speed, source


def _medians(keys: Sequence[Hashable], known: Floats) -> Floats:
    """Return for each hole the median of the known rows with its key; None has none."""
    speeds = known.tolist()
    wanted = {key for key, value in zip(keys, speeds, strict=True) if value != value} - {None}
    groups: dict[Hashable, list[float]] = {}
    for key, value in zip(keys, speeds, strict=True):
        if key in wanted and value == value:
            groups.setdefault(key, []).append(value)
    medians = {key: _median(values) for key, values in groups.items()}
    return np.array([medians.get(key, np.nan) for key in keys])


def _median(values: list[float]) -> float:
    """Return the median; NumPy's takes thirty times as long for the few values here."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
