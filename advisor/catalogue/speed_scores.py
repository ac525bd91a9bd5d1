"""CoreMark per vCPU of types that ran other benchmarks: a power law fitted on those with both.

    ln(CoreMark per vCPU) = a + b ln(score) + c ln(sharing)    [or + c if the CPU is Arm]

=========  =======================================================================
score      single-core score of Geekbench 6 or of PassMark
sharing    stress-ng's score with all vCPUs busy over vCPUs times that of one: below one where two
           vCPUs are the hyperthreads of one core
Arm        stands in for ``sharing`` where it is not known: an Arm vCPU is a whole core
=========  =======================================================================

Whole provider families left out, the scatter of the residual of ln is 0.12 with ``sharing`` (897
types), 0.16 and 0.15 without (1,131 and 1,175), the median error 9, 6 and 6 %, the 90th percentile
19, 25 and 24 %; one speed for all errs by 20 and 52 %. ``benchmarks/catalogue_core_speed.py``
prints it again (2026-11-21).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.catalogue.columns import Bools, Floats
from advisor.catalogue.speeds import family

if TYPE_CHECKING:
    from pandas import DataFrame

Law = tuple[str, ...]

# The better law first; a type takes the first that its scores allow.
LAWS: Final[tuple[Law, ...]] = (
    ("geekbench", "sharing"), ("geekbench", "arm"), ("passmark", "arm"),
)  # fmt: skip


def converted(source: Path, types: DataFrame) -> dict[tuple[str, str], float]:
    """Return CoreMark per vCPU for the types without it that ran others, by (provider, name).

    Parameters
    ----------
    types : DataFrame
        Columns provider, instance_type, vcpus, cpu_arch, coremark_per_vcpu.
    """
    scores = _scores(source, types)
    coremark = scores["coremark"].to_numpy(float)
    is_open = np.isnan(coremark)
    speed = np.full(len(scores), np.nan)
    for law in LAWS:
        x, has_all = _design(scores, law)
        known = has_all & ~is_open
        weights = _fit(x[known], np.log(coremark[known]))
        todo = has_all & is_open & np.isnan(speed)
        speed[todo] = np.exp(x[todo] @ weights)
    pairs = zip(scores["provider"], scores["instance_type"], strict=True)
    return {
        pair: round(value)
        for pair, value in zip(pairs, speed.tolist(), strict=True)
        if value == value
    }


def held_out(source: Path, types: DataFrame, law: Law) -> tuple[Floats, Floats]:
    """Return measured and predicted CoreMark per vCPU, each family predicted from the others."""
    scores = _scores(source, types)
    coremark = scores["coremark"].to_numpy(float)
    x, has_all = _design(scores, law)
    known = has_all & ~np.isnan(coremark)
    x, y = x[known], np.log(coremark[known])
    pairs = zip(scores["provider"][known], scores["instance_type"][known], strict=True)
    groups = np.array([f"{provider} {family(provider, name)}" for provider, name in pairs])
    predicted = np.empty(len(y))
    for group in np.unique(groups):
        out = groups == group
        predicted[out] = x[out] @ _fit(x[~out], y[~out])
    return np.exp(y), np.exp(predicted)


def _scores(source: Path, types: DataFrame) -> DataFrame:
    import pandas as pd

    keys = ["provider", "instance_type"]
    wanted = ["geekbench_single", "passmark_single", "stressng_bogo_s",
              "stressngsinglecore_bogo_s"]  # fmt: skip
    speeds = pd.read_csv(source / "cpu_speed.csv")[[*keys, *wanted]].drop_duplicates(keys)
    joined = types[[*keys, "vcpus", "cpu_arch", "coremark_per_vcpu"]].merge(
        speeds, on=keys, how="left"
    )
    joined["coremark"] = pd.to_numeric(joined["coremark_per_vcpu"], errors="coerce")
    joined["geekbench"] = joined["geekbench_single"]
    joined["passmark"] = joined["passmark_single"]
    per_vcpu = joined["stressng_bogo_s"] / pd.to_numeric(joined["vcpus"], errors="coerce")
    # Short runs boost one core above what it keeps up; more than linear scaling is noise.
    joined["sharing"] = (per_vcpu / joined["stressngsinglecore_bogo_s"]).clip(0.2, 1.2)
    joined["arm"] = np.where(joined["cpu_arch"] == "arm64", np.e, 1.0)  # its ln is 1 or 0
    return joined


def _design(scores: DataFrame, law: Law) -> tuple[Floats, Bools]:
    """Return the terms of a law and for which rows all of them are known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = [np.log(scores[name].to_numpy(float)) for name in law]
    x = np.column_stack([np.ones(len(scores)), *columns])
    return x, np.isfinite(x).all(axis=1)


def _fit(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], dtype=np.float64)
