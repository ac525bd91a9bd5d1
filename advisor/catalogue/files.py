"""The files of a snapshot and what each column may hold.

========================================  ====================================================
file                                      one row
========================================  ====================================================
types[.PART].csv.gz                       an instance type
prices[.PART].csv.gz                      a (type, region): rows of its part's types, of regions
                                          and of provenance, counted from 0
regions.csv, provenance.csv               a region; a source with its date, status and licence
specifications.cc-by-sa-4.0.csv.gz        a type, measured or taken from Spare Cores: fills holes
accelerators[.techpowerup].csv            an accelerator
accelerators.cc-by-sa-4.0.csv             an accelerator, measured products
networks.csv.gz                           a type: its network, as a page of the provider states it
processors.csv                            types by their names: the processor that pages state
burstable.csv                             types by their names: the share of each vCPU that lasts
aws_regions.csv                           a region of AWS: its code by its name
links.cc-by-sa-4.0.csv                    an instance on which copies were measured
storage_and_egress.csv.gz                 a price of storage or of outgoing traffic
========================================  ====================================================

A part is a group of rows with a licence of its own. The columns of each table, and of those that a
user may write, are the rows of ``columns.csv`` beside this file. The bounds catch unit errors: no
machine has a tebibyte of vCPUs, and none costs a million dollars an hour.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from advisor.catalogue.tables import Column, Kind

MAX_PRICE_USD_PER_H: Final = 100_000.0  # the dearest instance of 2026 costs 492


def _rows() -> Mapping[str, list[dict[str, str]]]:
    """Return the rows of ``columns.csv`` by their table."""
    found = defaultdict(list)
    text = Path(__file__).with_name("columns.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        found[row["table"]].append(row)
    return found


_ROWS: Final = _rows()


def columns(table: str) -> tuple[Column, ...]:
    """Return what the columns of a table may hold."""
    return tuple(
        Column(
            name=row["name"], kind=cast("Kind", row["kind"] or "number"),
            low=float(row["low"] or 0), high=float(row["high"] or "inf"),
            unit=float(row["unit"] or 1), fact=row["fact"],
            is_required=row["presence"] == "required", is_optional=row["presence"] == "optional",
        )
        for row in _ROWS[table]
    )  # fmt: skip


TYPES: Final = columns("types")
PRICES: Final = columns("prices")
# What a source lists: a machine, and its prices in a region. ``accelerator_memory_gib`` is only
# checked, not kept: accelerators.csv is the authority.
LISTED: Final = (
    *TYPES,
    *columns("listed"),
    *(column for column in PRICES if not column.name.endswith("_id")),
)
REGIONS: Final = columns("regions")
PROVENANCE: Final = columns("provenance")
SHARE_ALIKE_SPECIFICATIONS: Final = columns("share_alike_specifications")
# Precisions of which accelerators and devices state a dense peak.
PEAKS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
ACCELERATORS: Final = columns("accelerators")
SHARE_ALIKE_ACCELERATORS: Final = columns("share_alike_accelerators")
NETWORKS: Final = columns("networks")
PROCESSORS: Final = columns("processors")
BURSTABLE: Final = columns("burstable")
REGIONS_FILE: Final = "regions.csv"
PROVENANCE_FILE: Final = "provenance.csv"
SPECIFICATIONS_FILE: Final = "specifications.cc-by-sa-4.0.csv.gz"
ACCELERATORS_FILE: Final = "accelerators.csv"
SHARE_ALIKE_ACCELERATORS_FILE: Final = "accelerators.cc-by-sa-4.0.csv"
# Cards of a source whose licence is not confirmed: may be deleted (NOTICE).
UNCONFIRMED_ACCELERATORS_FILE: Final = "accelerators.techpowerup.csv"
NETWORKS_FILE: Final = "networks.csv.gz"
PROCESSORS_FILE: Final = "processors.csv"
BURSTABLE_FILE: Final = "burstable.csv"
AWS_REGIONS_FILE: Final = "aws_regions.csv"
LINKS_FILE: Final = "links.cc-by-sa-4.0.csv"
OTHER_PRICES_FILE: Final = "storage_and_egress.csv.gz"
