"""Where the data sets that do not ship are downloaded, and how upstream's files become ours.

Sia's and SkyPilot's repositories hold plain files of the measurements: those are read as they are.
Of the others the collected tables can be fetched from a copy (``--from``), each by its checksum.
Files are named one by one: what was set aside for acceptance stays out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.measurements.dataset import Upstream
from advisor.measurements.scaling import POLLUX, SIA
from advisor.measurements.table import read_frame

if TYPE_CHECKING:
    import pandas as pd

# SHA-256 of the collected tables, by their place under a folder laid out like ``shared/data``.
CHECKSUMS: Final[Mapping[str, str]] = {
    "measurements/spot/skypilot_spot_intervals.csv":
        "92eea1ca45c7bb9cef46461d0a6d39fa1f88fdc06cb42e84d22d4dc22a96f834",
    "measurements/lambda/lambda_history_union.csv":
        "34ad5a11bfc0c92c3a6f8e25e0eb67c77d108587b7e53343837d19820df6a604",
    "measurements/pollux_sia/sia_placements.csv":
        "db462c9ca08a477c071137ee282bedad56d374942a4fa608ddfe64609fdc6991",
    "measurements/pollux_sia/sia_scalability.csv":
        "6c3e343f9db8c0b53c908e582258a9edfe2bb11b5083437e0412b940a0e8a142",
    "cloud_runs/hivemind-multi-cloud/experiments.csv":
        "5d6b201ace24449a9a89b8c364a48f9532acc9114544d74a72cb55349e8f7e2d",
    "cloud_runs/hivemind-multi-cloud/nodes.csv":
        "5fde77e07703d48e64bad834002e19950b495a67820dfd8437424768d2695ad2",
    "cloud_runs/hivemind-multi-cloud/system_series.parquet":
        "5c4d06449e71352d9aaf6c8b576465a62d053d0e2d55f25db4574c03fe72b03e",
    "cloud_runs/hivemind-multi-cloud/train_steps.parquet":
        "20e5fdfa4406ba5bc19d5fc7907b295b6f30c9633be6d44d00b6a7d3d299b980",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Upstream's own files of a data set.

    Attributes
    ----------
    upstream : Upstream
        With the whole commit.
    files : tuple of str
        Paths in the repository.
    assemble : callable
        Makes our tables, by their place under ``measurements/``, of the folder of these files.
    """

    upstream: Upstream
    files: tuple[str, ...]
    assemble: Callable[[Path], dict[str, pd.DataFrame]]

    def url(self, host: str, file: str) -> str:
        """Return the address of a file."""
        return f"{host}/{self.upstream.repository}/{self.upstream.commit}/{file}"


# Sia: application -> clusters whose tables were collected. gpt_pmp's are made up by the authors;
# AWS's are Pollux's, which ship.
_SIA_CLUSTERS: Final = ("azure", "dgx", "dgx-ext", "rtx")
_SIA: Final = {
    **dict.fromkeys(("bert", "cifar10", "imagenet", "ncf"), _SIA_CLUSTERS),
    "yolov3": ("azure", "dgx", "dgx-ext"),
}


def _sia_file(table: str, application: str, cluster: str) -> str:
    return f"sia-simulator/traces/{application}/{table}-{cluster}.csv"


def _sia_pairs() -> Iterator[tuple[str, str]]:
    for application, clusters in _SIA.items():
        for cluster in clusters:
            yield application, cluster


def assemble_sia(folder: Path) -> dict[str, pd.DataFrame]:
    """Make Sia's two tables of upstream's files, Pollux's rows of AWS first.

    Raises
    ------
    ModelError
        If a file lacks a column.
    """
    import pandas as pd

    from advisor import data

    found = {}
    for name, table in SIA.tables.items():
        rows = [POLLUX.read(name, data.root("datasets"))]
        for application, cluster in _sia_pairs():
            path = folder / _sia_file(name, application, cluster)
            frame = read_frame(path).assign(app=application, cluster=cluster)
            rows.append(table.normalise(frame, path))
        found[table.file] = pd.concat(rows, ignore_index=True)
    return found


# Zones whose traces were collected: kind, nodes asked for, trace, zone and instance.
_SPOT: Final = (
    *(("availability", 1, "aws-02-15-2023", f"{zone}_v100_1") for zone in
      ("us-east-1a", "us-east-1c", "us-east-1d", "us-east-2b", "us-west-2a", "us-west-2c")),
    *(("availability", 1, "aws-10-26-2022", f"us-west-2a_{kind}")
      for kind in ("k80_1", "k80_8", "v100_1", "v100_8")),
    *(("preemption", 1, "aws-04-19-2023", f"{zone}_intel_64")
      for zone in ("us-east-1b", "us-east-1c", "us-east-1d")),
    *(("preemption", 1, "aws-04-22-2023", f"{zone}_v100_1")
      for zone in ("us-east-1c", "us-west-2c")),
    *(("preemption", 1, "gcp-04-30-2023", f"{zone}_c3-88")
      for zone in ("us-central1-c", "us-east1-b")),
    ("preemption", 4, "aws-08-03-2023", "us-west-2c_v100_1"),
)  # fmt: skip


def _spot_file(kind: str, nodes: int, trace: str, zone: str) -> str:
    return f"{kind}/{nodes}-node/{trace}/{zone}.json"


def assemble_spot(folder: Path) -> dict[str, pd.DataFrame]:
    """Make the table of constant intervals of SkyPilot's traces.

    A trace is a number of nodes that are up, every ``gap_seconds``.

    Raises
    ------
    ModelError
        If a file is none of them.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for kind, nodes, trace, place in _SPOT:
        zone, _, instance = place.partition("_")
        cloud, month, day, year = trace.split("-")
        told = {
            "kind": kind, "requested_nodes": nodes, "cloud": cloud, "trace": trace, "zone": zone,
            "instance": instance,
        }  # fmt: skip
        path = folder / _spot_file(kind, nodes, trace, place)
        for start_s, length_s, up in _intervals(path):
            rows.append(
                told
                | {"start_s": start_s, "duration_s": length_s, "available": up,
                   "price_usd_h": None, "start_date": f"{year}-{month}-{day}"}
            )  # fmt: skip
    return {"spot/intervals.csv": pd.DataFrame(rows)}


def _intervals(path: Path) -> Iterator[tuple[float, float, int]]:
    """Yield start [s], length [s] and nodes up of each stretch in which they stay the same."""
    try:
        content = bounded.read_json(path)
        gap_s, up = float(content["metadata"]["gap_seconds"]), [int(n) for n in content["data"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{path} is not a trace of SkyPilot's: {error}", hint="see SPOT"
        ) from error
    at = 0
    for count, stretch in itertools.groupby(up):
        length = len(list(stretch))
        yield at * gap_s, length * gap_s, count
        at += length


REMOTES: Final[Mapping[str, Remote]] = {
    "sia": Remote(
        upstream=Upstream(
            repository="siasosp23/artifacts", commit="37c68be73bc2ea5f53c778190d1b88f6c00e7352"
        ),
        files=tuple(_sia_file(table, *pair) for table in SIA.tables for pair in _sia_pairs()),
        assemble=assemble_sia,
    ),
    "spot": Remote(
        upstream=Upstream(
            repository="skypilot-org/spot-traces",
            commit="b26631383e2b5f5b48a3d700b92ed133edaf452e",
        ),
        files=tuple(_spot_file(*one) for one in _SPOT),
        assemble=assemble_spot,
    ),
}
