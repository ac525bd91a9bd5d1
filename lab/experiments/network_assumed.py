"""Judge the rule for unknown networks by leaving out one provider at a time.

``python -m advisor.lab.experiments.network_assumed``: the networks of one provider's types are
forgotten and assumed from the others' (``advisor.catalogue.networks``), then compared with what
they are. Also: whether Azure's constrained and promotional sizes have the network of their base
size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from advisor.catalogue import Catalogue, files
from advisor.catalogue.accelerators import Accelerator
from advisor.catalogue.networks import (
    LOW_QUANTILE,
    front_end_bytes_per_s,
    size_class,
    with_assumed_networks,
)
from advisor.catalogue.offer_columns import TypeColumns
from advisor.catalogue.snapshot import bundled_folder, find
from advisor.catalogue.tables import read
from advisor.lab.catalogue.networks import base_size

_FEWEST_TYPES = 8  # of a provider whose network is known, to be left out


def forgotten(types: TypeColumns, provider: str) -> TypeColumns:
    """Return the types with the networks of one provider unknown."""
    network = np.where(types.provider == provider, np.nan, types.network_bytes_per_s)
    return replace(types, network_bytes_per_s=network)


def held_out(
    types: TypeColumns, accelerators: Mapping[str, Accelerator]
) -> dict[str, dict[str, float]]:
    """Return how the rule does on each provider, and on all accelerated and other types."""
    known = ~np.isnan(types.network_bytes_per_s)
    front = types.network_bytes_per_s
    error = np.full(len(types), np.nan)
    sd = error.copy()
    for provider in sorted(set(types.provider[known].tolist())):
        rows = known & (types.provider == provider)
        if rows.sum() >= _FEWEST_TYPES:
            found = with_assumed_networks(forgotten(types, provider), accelerators)
            error[rows] = np.log(front[rows] / found.network_bytes_per_s[rows])
            sd[rows] = found.network_log_sd[rows]
    judged = ~np.isnan(error)
    accelerated = size_class(types.accelerator_count) > 0
    groups = {p: types.provider == p for p in sorted(set(types.provider[judged].tolist()))}
    groups |= {"accelerated": accelerated, "cpu": ~accelerated, "all": judged}
    return {
        name: _scores(error[rows & judged], sd[rows & judged]) for name, rows in groups.items()
    }


def _scores(error: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    return {
        "types": float(len(error)),
        "assumed_above_truth_fraction": float(np.mean(error < -1e-9)),
        "median_truth_over_assumed": float(np.exp(np.median(error))),
        "rms_log": float(np.sqrt(np.mean(error**2))),
        "median_log_sd": float(np.median(sd)),
        "within_factor_2_fraction": float(np.mean(np.abs(error) <= np.log(2) + 1e-9)),
        "within_factor_4_fraction": float(np.mean(np.abs(error) <= np.log(4) + 1e-9)),
        "within_1.645_sd_fraction": float(np.mean(np.abs(error) <= 1.645 * sd + 1e-9)),
        "sd_factor_for_90_percent": float(np.quantile(np.abs(error) / (1.645 * sd), 0.9)),
    }


def variants() -> dict[str, int]:
    """Count Azure's variants that have a figure of their own, and those equal to their base."""
    table = read(find([bundled_folder()], files.NETWORKS_FILE) or Path(), files.NETWORKS)
    basis, names = table["basis"], table["instance_type"]
    rates = dict(zip(names, table["network_gbps"].tolist(), strict=True))
    own = [
        name
        for name, how in zip(names, basis, strict=True)
        if how == "stated" and base_size(name) != name and base_size(name) in rates
    ]
    equal = sum(rates[name] == rates[base_size(name)] for name in own)
    return {"stated": len(own), "equal_to_base": equal}


def main() -> None:
    catalogue = Catalogue.load(with_overrides=False)
    types = catalogue.types
    known = ~np.isnan(types.network_bytes_per_s)
    front = np.log(front_end_bytes_per_s(types)[known])
    low = np.quantile(front, LOW_QUANTILE)
    print(
        json.dumps(
            {
                "types_known": int(known.sum()),
                "types_assumed": int((~known).sum()),
                "held_out": held_out(types, catalogue.accelerators),
                "azure_variants": variants(),
                "all_known": {
                    "lower_quartile_gbit_per_s": float(np.exp(low) * 8e-9),
                    "rms_log": float(np.sqrt(np.mean((front - low) ** 2))),
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
