"""How wrong the filled-in speeds of vCPUs are, and whether the processor sheet ranks as they do.

    ADVISOR_SHARED=/work/shared python -m advisor.lab.speed.catalogue_core_speed

Each measured type is predicted from others that it shares nothing with but the rule: for the
family rule the type is left out, for the others its whole family. Without the collected facts
(``ADVISOR_SHARED``) only the ranking of generations is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from advisor import data
from advisor.catalogue import Catalogue, snapshot, specifications
from advisor.catalogue.offer_columns import Floats, TypeColumns
from advisor.lab.catalogue import build
from advisor.machines.devices import cpu_device
from advisor.planners.core import GIB


def main() -> None:
    types = Catalogue.load(snapshot.bundled_folder(), with_overrides=False).types
    measured = np.where(types.core_speed_source == "measured", types.core_speed, np.nan)
    show_generations(types, measured)
    shared = data.shared()
    if shared is None:
        return
    providers, names = types.provider.tolist(), types.name.tolist()
    families = [
        (provider, specifications.family(provider, name))
        for provider, name in zip(providers, names, strict=True)
    ]
    models = [
        (provider, specifications.processor(model)) if model else None
        for provider, model in zip(providers, types.cpu_model.tolist(), strict=True)
    ]
    show("same family", measured, _by_others(families, names, measured))
    source = shared / "data" / "catalogue"
    table = pd.read_csv(source / "types.csv.gz", keep_default_na=False)
    for law in build.LAWS:
        show(" and ".join(law), *build.held_out(source, table, law))
    show("same cpu model", measured, _by_others(models, families, measured))
    show("one speed for all", measured, np.full(len(measured), np.nanmedian(measured)))


def show_generations(types: TypeColumns, measured: Floats) -> None:
    """Set what a vCPU of each generation computes by the sheet beside its median CoreMark."""
    speeds: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for at in np.flatnonzero(~np.isnan(measured) & (types.accelerator == "")).tolist():
        device = cpu_device(
            name="one", vcpus=1, memory_bytes=GIB, cpu_model=str(types.cpu_model[at]),
            cpu_arch=str(types.cpu_arch[at]),
        )  # fmt: skip
        gflop_per_s = (device.fp32_flop_per_s or 0.0) / 1e9
        is_arm = "Arm" if device.architecture.startswith("arm") else "x86"
        speeds[device.vendor, gflop_per_s, is_arm].append(float(measured[at]))
    rows = [(*key, float(np.median(found)), len(found)) for key, found in speeds.items()]
    for name, gflop_per_s, kind, coremark, count in sorted(rows, key=lambda row: row[3]):
        print(
            f"{name:36}{kind}{gflop_per_s:8.1f} Gflop/s{coremark:9,.0f} CoreMark{count:5d} types"
        )
    for kind in ("Arm", "x86"):
        pairs = np.array([(row[1], row[3]) for row in rows if row[2] == kind])
        rank = spearmanr(pairs[:, 0], pairs[:, 1]).statistic
        print(f"{kind}: rank correlation {rank:.2f} over {len(pairs)} generations")


def _by_others(keys: Sequence[Hashable], left_out: Sequence[Hashable], measured: Floats) -> Floats:
    """Predict each type as the median of those with its key and not in its left-out group."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, key in enumerate(keys):
        if key is not None and measured[at] == measured[at]:
            groups[key].append(at)
    out = np.full(len(measured), np.nan)
    for at, key in enumerate(keys):
        others = [measured[o] for o in groups.get(key, ()) if left_out[o] != left_out[at]]
        if others:
            out[at] = np.median(others)
    return out


def show(name: str, measured: Floats, predicted: Floats) -> None:
    known = ~np.isnan(measured) & ~np.isnan(predicted)
    error = np.abs(predicted[known] / measured[known] - 1)
    bias = np.exp(np.mean(np.log(predicted[known] / measured[known])))
    print(
        f"{name:24}{known.sum():6d} types   median error {np.median(error):6.1%}   "
        f"p90 {np.quantile(error, 0.9):6.1%}   bias {bias:.3f}"
    )


if __name__ == "__main__":
    main()
