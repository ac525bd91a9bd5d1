"""How unlike the workers of one job are, iteration by iteration, as published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset
from advisor.measurements.table import PublishedTable

if TYPE_CHECKING:
    import pandas as pd

_DIGITS: Final = 6
_THOUSANDTHS: Final = 1000.0  # times are published as whole numbers up to this


def _by_job(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a job: its iterations' spreads, and how one goes with the next."""
    ordered = frame.sort_values(["job", "iteration"])
    spread = ordered.groupby("job")["spread_fraction"]
    form = spread.agg(
        iterations="size",
        spread_median="median",
        spread_p90=lambda one: one.quantile(0.9),
        spread_lag1=lambda one: one.autocorr(1),
    )
    return form.round(_DIGITS).reset_index()


def _of_workers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["job", "iteration", "worker"]).astype(
        {"job": int, "iteration": int, "worker": int}
    )


STRAGGLERS: Final = Dataset(
    name="stragglers",
    title="Alibaba's mini-batch times of ten workers a job",
    upstream=(),
    licence="CC-BY-4.0 (alibaba/clusterdata, cluster-trace-gpu-v2020)",
    ships=True,
    tables={
        "spread_by_job": PublishedTable(
            file="stragglers/spread_by_job.csv",
            published="measurements/failures/alibaba_minibatch_cov.csv.gz",
            columns={"job": "job", "iteration": "iteration", "spread_fraction": "cov"},
            form=("job", "iterations", "spread_median", "spread_p90", "spread_lag1"),
            tidy=_by_job,
        ),
        "workers": PublishedTable(
            file="stragglers/workers.csv.gz",
            published="measurements/failures/alibaba_minibatch_workers.csv.gz",
            columns={
                "job": "job",
                "iteration": "time",
                "worker": "worker",
                "gpu_percent": "gpu",
                "batch_time_fraction": "batch_time_norm",
            },
            divisors={"batch_time_fraction": _THOUSANDTHS},
            tidy=_of_workers,
        ),
    },
)
