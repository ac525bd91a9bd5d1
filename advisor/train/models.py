"""``advisor train models``: fit the learned predictors on labelled runs, and say how wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from advisor import data
from advisor.errors import UsageError
from advisor.records import RunRecord
from advisor.train.backends import workers

NAME: Final = "runs"  # the folder of trained_models that is written by default
MODELS: Final = ("auto", "all", "stack", "ridge", "gp", "forest", "boosting", "sequence")


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Files or folders of run records; default: our own."),
    ] = None,
    fmt: Annotated[str, typer.Option("--format", help="See advisor runs import.")] = "records",
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "auto",
    target: Annotated[
        str, typer.Option(help="over_analytic, over_anchor, time or cost.")
    ] = "over_analytic",
    out: Annotated[Path | None, typer.Option(help="Folder of the model.")] = None,
    backend: Annotated[str, typer.Option(help="loky, dask or ray.")] = "loky",
    address: Annotated[
        str | None, typer.Option("--scheduler", "--address", help="Of a running cluster.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once.")] = 1,
    seed: Annotated[int, typer.Option(help="The same data and seed give the same model.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Fit a predictor on labelled runs and save it with its errors on left-out jobs."""
    records = read_runs(runs, fmt)
    with workers(backend, address):
        trained, results = train(
            records, model=model, target=target, n_jobs=jobs, seed=seed, tell=_tell
        )
    folder = out or data.root("trained_models") / NAME
    trained.save(folder, card(trained, records))
    record = {"schema_version": 1, "model": str(folder), **results}
    typer.echo(json.dumps(record, indent=2) if as_json else _text(folder, results))


def read_runs(paths: Sequence[Path] | None, fmt: str) -> list[RunRecord]:
    """Read the runs to learn from.

    Raises
    ------
    UsageError
        If there are none.
    """
    from advisor.importers import formats

    folders = list(paths) if paths else [data.root("datasets") / "runs"]
    if not paths and fmt == "records":
        fmt = "minicloud"
    records = [record for path in folders for record in formats.read(fmt, path)]
    if not records:
        raise UsageError(f"no runs in {', '.join(map(str, folders))}", hint="see --data")
    return records


def train(
    records: Sequence[RunRecord],
    *,
    model: str = "auto",
    target: str = "over_analytic",
    n_jobs: int = 1,
    seed: int = 0,
    tell: Any = lambda line: None,
) -> tuple[Any, dict[str, Any]]:
    """Fit a model and return it with its contest: who did how well on left-out jobs.

    Parameters
    ----------
    records : sequence of RunRecord
    model : str
        One of ``MODELS``; ``auto`` keeps the stack or the member whose choices cost least.
    target : str
    n_jobs, seed : int
    tell : callable
        Is given a line of progress.

    Returns
    -------
    TrainedModel, dict
        The model, and what ``metrics.json`` holds.

    Raises
    ------
    UsageError
        If there is no such model or target.
    ModelError
        If the records cannot be learned from.
    """
    from advisor import features
    from advisor.models.guarded import Guarded
    from advisor.models.problem import problem
    from advisor.models.selection import STACK, best_of, contest, keep_only
    from advisor.models.stack import Stack
    from advisor.models.trained import TrainedModel, describe_features

    if model not in MODELS:
        raise UsageError(f"no model named {model!r}", hint=f"one of: {', '.join(MODELS)}")
    has_series = model in ("sequence", "all")
    asked = problem(records, cast(Any, target), has_series=has_series)
    tell(f"{len(asked.records)} of {len(records)} runs, {len(set(asked.groups))} families")
    settings: dict[str, Any] = {"is_adaptive": True, "n_jobs": n_jobs, "random_state": seed}
    members = stack_members(model, has_series=has_series, n_jobs=n_jobs, seed=seed)
    guarded = Guarded(
        Stack(members, static_columns=len(features.FEATURES), **settings),
        guarded_columns=len(features.FEATURES),
        **settings,
    )
    asked.fit(guarded, slice(None))
    stack = cast(Stack, guarded.member_)
    results = contest(asked, stack)
    chosen = best_of(results) if model == "auto" else STACK
    if chosen != STACK:
        keep_only(guarded, stack, asked, chosen)
    metrics = {
        "fitted_at": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "chosen": chosen,
        "weights": dict(zip((n for n, _ in members), stack.weights_.tolist(), strict=True)),
        "left_out_jobs": [_contest_record(result) for result in results],
    }
    trained = TrainedModel(
        name=NAME,
        estimator=guarded,
        target=asked.target,
        has_series=has_series,
        about=describe_features(asked, has_series=has_series),
        metrics=metrics,
    )
    return trained, metrics


def stack_members(
    model: str, *, has_series: bool, n_jobs: int, seed: int
) -> tuple[tuple[str, Any], ...]:
    """Return the unfitted members of a stack by name."""
    from advisor import features
    from advisor.models.registry import estimator

    settings: dict[str, Any] = {"n_jobs": n_jobs, "random_state": seed}
    own: dict[str, dict[str, Any]] = {
        "ridge": {},
        "gp": {},
        "forest": {"trees": 100},
        "boosting": {"rounds": 300},
        "sequence": {
            "channels": len(features.SEQUENCE_CHANNELS) if has_series else 0,
            "readings": features.SEQUENCE_READINGS if has_series else 0,
        },
    }
    names = {"auto": _PLAIN, "stack": _PLAIN, "all": (*_PLAIN, "sequence")}.get(model, (model,))
    return tuple((name, estimator(name, **own[name], **settings)) for name in names)


_PLAIN: Final = ("ridge", "gp", "forest", "boosting")


def _contest_record(result: Any) -> dict[str, Any]:
    found = result.regret
    return {
        "name": result.name,
        "overall": result.metrics.to_record(),
        "top1_regret": None
        if found is None
        else {"model": found.top1, "constant": found.constant, "random": found.random},
    }


def card(trained: Any, records: Sequence[RunRecord]) -> str:
    """Return ``card.md``: what the model was fitted on, how wrong it is, where it fails."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.status] = counts.get(record.status, 0) + 1
    families = sorted({r.job.family for r in records})
    instances = sorted({r.instance_key for r in records})
    lines = [
        f"# {trained.name}",
        "",
        f"Fitted {trained.metrics['fitted_at']} by `advisor train models`, seed "
        f"{trained.metrics['seed']}, on {trained.about['records']} runs of "
        f"{', '.join(sorted({r.source for r in records}))} "
        f"(data {trained.about['data_sha256'][:12]}); target `{trained.target}`.",
        "",
        f"- Runs by status: {', '.join(f'{k} {v}' for k, v in sorted(counts.items()))}. Censored "
        "runs count as lower bounds; failed ones have no time and are not fitted.",
        f"- Programs: {', '.join(families)}.",
        f"- Instance types: {', '.join(instances)}.",
        f"- Chosen: {trained.metrics['chosen']}, weights "
        + ", ".join(f"{k} {v:.2f}" for k, v in trained.metrics["weights"].items()) + ".",
        "",
        "Errors on left-out programs (each in turn; weights and intervals from the others):",
        "",
        "| estimator | MAPE | median | p90 | coverage of 90 % | half-width | regret | constant |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for result in trained.metrics["left_out_jobs"]:
        m, regret = result["overall"], result["top1_regret"]
        chosen = "-" if regret is None else f"{regret['model']:.3f}"
        constant = "-" if regret is None else f"{regret['constant']:.3f}"
        lines.append(
            f"| {result['name']} | {m['mape_fraction']:.1%} | {m['median_ape_fraction']:.1%} | "
            f"{m['p90_ape_fraction']:.1%} | {m['coverage']:.1%} | {m['width']:.1%} | {chosen} | "
            f"{constant} |"
        )
    lines += [
        "",
        "Where it fails: outside the ranges above (other accelerators, more machines, faster "
        "networks) it answers by physics alone, with physics' own interval, and says so "
        "(`is_extrapolating`). It knows nothing of a program that behaves unlike all of these.",
        "",
    ]
    return "\n".join(lines)


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def _text(folder: Path, results: dict[str, Any]) -> str:
    lines = [
        f"{'on left-out jobs':18}{'MAPE %':>8}{'p50 %':>7}{'p90 %':>7}{'cover':>7}{'width':>7}"
    ]
    for result in results["left_out_jobs"]:
        m = result["overall"]
        mark = " <" if result["name"] == results["chosen"] else ""
        lines.append(
            f"{result['name']:18}{100 * m['mape_fraction']:8.1f}"
            f"{100 * m['median_ape_fraction']:7.1f}{100 * m['p90_ape_fraction']:7.1f}"
            f"{m['coverage']:7.2f}{m['width']:7.2f}{mark}"
        )
    return "\n".join([*lines, f"saved {folder}"])
