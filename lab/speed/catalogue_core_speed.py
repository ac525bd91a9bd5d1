"""How wrong the filled-in speeds of vCPUs are, by the way in which they were filled in.

    ADVISOR_SHARED=/work/shared python -m advisor.lab.speed.catalogue_core_speed

Each measured type is predicted from others that it shares nothing with but the rule: for the
family rule the type is left out, for the others its whole family.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd

from advisor import data
from advisor.catalogue import Catalogue, snapshot, specifications
from advisor.catalogue.offer_columns import Floats
from advisor.lab.catalogue import build


def main() -> None:
    shared = data.shared()
    if shared is None:
        raise SystemExit("set ADVISOR_SHARED to the folder of collected facts")
    types = Catalogue.load(snapshot.bundled_folder(), with_overrides=False).types
    measured = np.where(types.core_speed_source == "measured", types.core_speed, np.nan)
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
