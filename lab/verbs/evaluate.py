"""``advisor evaluate``: how wrong the predictors are on each split, beside the baselines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from advisor.errors import ModelError, UsageError
from advisor.train.backends import workers
from advisor.train.labelled import AUTO, read_runs
from advisor.train.models import MODELS, predictor
from advisor.train.progress_lines import progress

if TYPE_CHECKING:
    from advisor.learned.evaluation import Metrics, SplitScores

_HEADER: Final = (
    f"{'split':18}{'rows':>6}{'MAPE %':>8}{'p50 %':>7}{'p90 %':>7}{'bias':>6}{'R2':>8}"
    f"{'rank':>6}{'cover':>7}{'width':>7}"
)
_SPLITS = ("random", "job", "instance", "both")


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Files or folders of runs (default: the packaged ones and your own)."
        ),
    ] = None,
    fmt: Annotated[
        str,
        typer.Option(
            "--format", help="Format of the runs: auto, or one of those of `advisor runs import`."
        ),
    ] = AUTO,
    model: Annotated[str, typer.Option(help=f"Predictor to score: {', '.join(MODELS)}.")] = "auto",
    target: Annotated[
        str, typer.Option(help="What is predicted: over_analytic, over_anchor, time or cost.")
    ] = "over_analytic",
    split: Annotated[
        str, typer.Option(help=f"What is left out: all, or one of {', '.join(_SPLITS)}.")
    ] = "all",
    backend: Annotated[
        str, typer.Option(help="Where the work runs: loky (this machine), dask or ray.")
    ] = "loky",
    address: Annotated[
        str | None,
        typer.Option("--scheduler", "--address", help="Address of a running Dask or Ray cluster."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of folds to compute in parallel.")] = 1,
    folds: Annotated[
        int, typer.Option(help="Maximum number of groups to leave out in turn, chosen evenly.")
    ] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the models and of the random split.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Score the predictors and baselines on groups of runs left out of the fit."""
    if split != "all" and split not in _SPLITS:
        raise UsageError(f"no split named {split!r}", hint=f"one of: all, {', '.join(_SPLITS)}")
    if folds < 1:
        raise UsageError(f"not a number of folds: {folds}", hint="give 1 or more")
    if model not in MODELS:
        raise UsageError(f"no model named {model!r}", hint=f"one of: {', '.join(MODELS)}")
    records = read_runs(runs, fmt)
    wanted = _SPLITS if split == "all" else (split,)
    with workers(backend, address), progress(is_quiet=quiet or as_json):
        results = [
            r for s in wanted if (r := _scored(records, model, target, s, jobs, seed, folds))
        ]
    if not results:
        raise ModelError("no split can be made of these runs", hint="add jobs or instance types")

    record = {
        "schema_version": 1,
        "model": model,
        "target": target,
        "rows": max(r.scored for r in results),
        "splits": {r.name: r.to_record() for r in results},
    }
    typer.echo(json.dumps(record, indent=2) if as_json else "\n".join(report_lines(results)))


def _scored(
    records: list[Any], model: str, target: str, split: str, jobs: int, seed: int, folds: int
) -> Any | None:
    """Score one split; None where the runs do not allow it and others are wanted too."""
    from advisor.learned.evaluation import evaluate
    from advisor.learned.problem import problem_of

    has_series = model in ("sequence", "all")
    asked = problem_of(records, cast(Any, target), has_series=has_series)

    def build() -> Any:
        return predictor(model, channels=asked.channels, seed=seed, folds=5)

    try:
        result = evaluate(asked, build, cast(Any, split), seed=seed, n_jobs=jobs, most_folds=folds)
    except ModelError as error:
        sys.stderr.write(f"note: split {split} left out: {error}\n")
        return None
    return result


def report_lines(splits: Sequence[SplitScores]) -> list[str]:
    """Return a table for people: one line a split and baseline."""
    lines = [_HEADER]
    for split in splits:
        lines.append(_line(split.name, split.overall))
        lines += [_line(f"  {name}", m) for name, m in split.baselines.items()]
        if (found := split.top1_regret) is not None:
            lines.append(
                f"  top-1 regret over {found.jobs} jobs: {found.top1:.3f} "
                f"(constant answer {found.constant:.3f}, random {found.random:.3f})"
            )
    return lines


def _line(name: str, m: Metrics) -> str:
    r2 = "" if m.r2 is None else f"{m.r2:.3f}"
    rank = "" if m.spearman is None else f"{m.spearman:.2f}"
    cover = "" if m.coverage is None else f"{m.coverage:.2f}"
    width = "" if m.width is None else f"{m.width:.2f}"
    return (
        f"{name[:17]:18}{m.rows:6.0f}{100 * m.mape_fraction:8.1f}"
        f"{100 * m.median_ape_fraction:7.1f}{100 * m.p90_ape_fraction:7.1f}{m.bias:6.2f}"
        f"{r2:>8}{rank:>6}{cover:>7}{width:>7}"
    )
