"""``advisor train models``: fit the learned predictors on labelled runs, and say how wrong."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import typer

from advisor import data
from advisor.ask import OUTPUT, Printed, option
from advisor.errors import ModelError, UsageError
from advisor.estimate import COST, OWN_RUNS
from advisor.records import RunRecord, tables_read
from advisor.train import folder as model_folder
from advisor.train.backends import workers
from advisor.train.folder import card, spread_card
from advisor.train.labelled import (
    AUTO,
    default_paths,
    is_own,
    left_out_notes,
    read_each,
    run_files,
)
from advisor.train.learning import Learning, keep_previous, undo, won
from advisor.train.progress_lines import progress

MODELS: Final = ("auto", "all", "stack", "ridge", "gp", "forest", "boosting", "sequence")
NETWORK: Final = "sequence"
SPLITS: Final = ("job", "instance", "both", "random")
_LEAST_GROUPS: Final = 2
_MOST_FOLDS: Final = 24  # of the pairs of ``both``


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainModels(Printed):
    """Fit a predictor on labelled runs."""

    # fmt: off
    runs: list[Path] | None = option("Files or folders of runs (default: the packaged ones and "
        "your own).", flags="--data")
    fmt: str = option("Format of the runs: auto, or one of those of `advisor runs import`.",
        default=AUTO, flags="--format")
    model: str = option(f"Predictor to fit: {', '.join(MODELS)}.", default="auto")
    target: str = option("What is learned: over_analytic, over_anchor, cost_over_anchor (shown by "
        "`predict`), time or cost.", default="over_analytic")
    split: str = option(f"What is left out to choose and to score: {', '.join(SPLITS)}.",
        default="job")
    out: Path | None = option("Folder to write the model to (default: where `recommend` looks).")
    backend: str = option("Where the work runs: loky (this machine), dask or ray.", default="loky")
    address: str | None = option("Address of a running Dask or Ray cluster.",
        flags="--scheduler --address")
    jobs: int = option("Number of processes to run in parallel.", default=1)
    seed: int = option("Random seed; the same data and seed give the same model.", default=0)
    spread: bool = option("Keep each file on its Dask worker, to fit boosted trees on any number "
        "of runs.", default=False)
    checkpoints: Path | None = option("Folder that keeps finished parts of a long fit.")
    day: str | None = model_folder.day_option()
    undo: bool = option("Go back to what answered before the last training.", default=False)
    quiet: bool = option("Show no progress.", default=False, flags="--quiet -q", panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor.learned import require_replaceable

        if self.undo:
            typer.echo("\n".join(undo()))
            return
        day = model_folder.day_of(self.day)
        if self.out is not None:  # before the fit, which takes minutes
            require_replaceable(self.out)
        for line in left_out_notes(self.runs, self.fmt):
            typer.echo(line, err=True)
        if self.spread:
            self._spread(day)
            return
        with tables_read() as inputs:
            each = read_each(self.runs, self.fmt)
        learning = Learning.begun(each) if self.out is None else None
        if learning is not None and self.runs is None and learning.has_nothing_for_trees:
            self._finish(learning)
            return
        records = [record for some in each.values() for record in some]
        bar = progress(self.checkpoints, is_quiet=self.quiet or self.as_json)
        with workers(self.backend, self.address), bar:
            trained, results = train(
                records, model=self.model, target=self.target, split=self.split,
                n_jobs=self.jobs, seed=self.seed,
            )  # fmt: skip
            effects = _effects(trained, self.model, records, self.jobs, self.seed)
        results = {**results, **effects}
        told = self._given("fmt", "model", "target", "split", "seed")
        origin = model_folder.origin("models", inputs, day, told)
        self._save(trained, results, origin, lambda fitted: card(fitted, records), learning)

    def _spread(self, day: str) -> None:
        """Fit on a Dask cluster, each file of runs on one of its workers."""
        from advisor.train.cluster import train_on_dask

        if self.backend != "dask":
            raise UsageError("--spread needs a Dask cluster", hint="add --backend dask")
        files = [f for path in self.runs or default_paths() for f in run_files(path)]
        with workers(self.backend, self.address):
            trained, results = train_on_dask(
                files, fmt=self.fmt, target=self.target, seed=self.seed
            )
        inputs = {f"runs, {trained.about['records']}": trained.about["data_sha256"]}
        told = [*self._given("fmt", "target", "seed"), "--spread", "--backend", self.backend]
        origin = model_folder.origin("models", inputs, day, told)
        self._save(trained, results, origin, lambda fitted: spread_card(fitted, len(files)))

    def _given(self, *names: str) -> list[str]:
        """Return the options that change the model and are not the usual ones."""
        given = [part for path in self.runs or [] for part in ("--data", str(path))]
        usual = TrainModels()
        for name in names:
            if getattr(self, name) != getattr(usual, name):
                given += [f"--{'format' if name == 'fmt' else name}", str(getattr(self, name))]
        return given

    def _save(
        self, trained: Any, results: Any, origin: dict[str, Any], told: Callable[[Any], str],
        learning: Learning | None = None,
    ) -> None:  # fmt: skip
        """Write the model for the regions in which it errs less than the shipped one, and say so.

        Raises ModelError if there is none.
        """
        regions = won(results.pop("regions", ()), learning) if results["own"] else None
        is_kept = regions is None or bool(regions)
        folder = self.out or data.writable_models() / trained.name
        if is_kept:
            if self.out is None:
                keep_previous()
            about = dict(trained.about) | ({} if regions is None else {"regions": regions})
            stated = replace(trained, about=about, metrics=origin | dict(trained.metrics))
            stated.save(folder, told(stated))
        record = {"schema_version": 1, "model": str(folder) if is_kept else None, **results}
        text = "\n".join([*_table(results), *([f"saved {folder}"] if is_kept else [])])
        self._finish(learning, record, text, is_kept=is_kept)

    def _finish(
        self, learning: Learning | None, record: Mapping[str, Any] | None = None, text: str = "",
        *, is_kept: bool = False,
    ) -> None:  # fmt: skip
        """Keep what own runs say, and print all of it; raises ModelError where nothing is kept."""
        kept = False if learning is None else learning.finish(is_changed=is_kept)
        own = {} if learning is None else {"regions": learning.as_rows()}
        record = {"schema_version": 1, "model": None, **(record or {}), **own}
        lines = [*([text] if text else []), *(() if learning is None else learning.lines())]
        typer.echo(json.dumps(record, indent=2) if self.as_json else "\n".join(lines))
        if not (is_kept or kept):
            raise ModelError(
                "the new model errs no less than the shipped one on your own runs: it is not "
                "saved",
                hint="what answered before still does; note more real runs (advisor runs actual "
                "RUN MACHINE --step-time 310ms), and train again",
            )


def _effects(
    trained: Any, model: str, records: Sequence[RunRecord], n_jobs: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Return how the model errs beside the shipped one on the user's own runs, and where less."""
    from advisor.learned import STACK, problem_of
    from advisor.train.effect import beside_shipped, by_region, left_out_answers

    asked = problem_of(records, trained.target, has_series=trained.channels > 0)
    chosen = str(trained.metrics["chosen"])

    def build() -> Any:
        name = model if chosen == STACK else chosen
        # One member has all the weight however it is left out.
        folds = 5 if chosen == STACK else 2
        return predictor(name, channels=asked.channels, seed=seed, folds=folds)

    own = is_own(asked.records)
    found: dict[str, list[dict[str, Any]]] = {"own": []}
    if own.any():
        answers = left_out_answers(asked, own, trained, build, n_jobs)
        found["own"] = beside_shipped(asked, own, trained, answers)
        found["regions"] = by_region(asked, own, trained, answers)  # type: ignore[assignment]
    return found


def train(
    records: Sequence[RunRecord], *, model: str = "auto", target: str = "over_analytic",
    split: str = "job", n_jobs: int = 1, seed: int = 0,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """Fit a model and return it with its contest: who did how well on what was left out.

    Raises UsageError if there is no such model, target or split; ModelError if the records cannot
    be learned from.

    Parameters
    ----------
    model : str
        One of ``MODELS``; ``auto`` and ``all`` keep the stack or the member whose choices cost
        least: ``auto`` lets the network compete beside the stack where the laboratory and PyTorch
        are there, ``all`` has it in the stack.
    split : str
        What is left out in turn for the weights, the choice and the intervals: whole programs
        (``job``), instance types, or single runs (``random``: siblings stay in, which flatters).
        ``both`` leaves out programs, and scores with the instance type left out besides.

    Returns
    -------
    TrainedModel, dict
        The model, and what ``metrics.json`` holds.
    """
    from advisor.learned import STACK, Stack, TrainedModel, best_of, describe_features, keep_only

    if model not in MODELS:
        raise UsageError(f"no model named {model!r}", hint=f"one of: {', '.join(MODELS)}")
    if split not in SPLITS:
        raise UsageError(f"no split named {split!r}", hint=f"one of: {', '.join(SPLITS)}")
    asked, guarded, results = _contended(records, model, target, split, n_jobs, seed)
    chosen = best_of(results) if model in ("auto", "all") else model
    if model == "auto" and has_network():
        beside = _contended(records, NETWORK, target, split, n_jobs, seed)
        results += [result for result in beside[2] if result.name == NETWORK]
        chosen = best_of(results)
        if chosen == NETWORK:
            asked, guarded = beside[:2]
    stack = cast(Stack, guarded.member_)
    if chosen != STACK and len(stack._named()) > 1:
        keep_only(guarded, stack, asked, chosen)
    metrics: dict[str, Any] = {
        "seed": seed,
        "split": split,
        "chosen": chosen,
        "weights": {name: float(w) for (name, _), w in
                    zip(stack._named(), stack.weights_, strict=True)},
        "left_out": [_contest_record(result) for result in results],
    }  # fmt: skip
    if split == "both":
        metrics["both"] = _both(asked, model, n_jobs=n_jobs, seed=seed)
    trained = TrainedModel(
        name=COST if asked.target == "cost_over_anchor" else OWN_RUNS,
        estimator=guarded,
        target=asked.target,
        channels=asked.channels,
        about=describe_features(asked, hull=guarded.hull_),
        metrics=metrics,
    )
    return trained, metrics


def _contended(
    records: Sequence[RunRecord], model: str, target: str, split: str, n_jobs: int, seed: int
) -> tuple[Any, Any, list[Any]]:
    """Fit a model's stack; return its problem, the fit, and the contest of its members."""
    from advisor.learned import Stack, contest, problem_of

    has_series = model in (NETWORK, "all")
    asked = _grouped(problem_of(records, cast(Any, target), has_series=has_series), split)
    _require_groups(asked, split)
    guarded = predictor(model, channels=asked.channels, n_jobs=n_jobs, seed=seed)
    asked.fit(guarded, slice(None))
    return asked, guarded, contest(asked, cast(Stack, guarded.member_))


def has_network() -> bool:
    """Whether the laboratory's network can be fitted here."""
    return all(importlib.util.find_spec(name) is not None for name in ("advisor.lab", "torch"))


def predictor(
    model: str, *, channels: int, n_jobs: int | None = 1, seed: int = 0, folds: int = 10
) -> Any:
    """Return what is fitted, unfitted: a stack that physics guards where the data end."""
    from advisor.learned import FEATURES, NAMES, Guarded, Stack, is_watched

    settings: dict[str, Any] = {"is_adaptive": True, "n_jobs": n_jobs, "random_state": seed}
    members = stack_members(model, channels=channels, n_jobs=n_jobs or 1, seed=seed)
    return Guarded(
        Stack(members, folds=folds, static_columns=len(FEATURES), **settings),
        guarded_columns=np.flatnonzero(is_watched()).tolist(),
        parted_columns=[NAMES.index(n) for n in ("instances", "accelerators")],
        **settings,
    )


def _grouped(asked: Any, split: str) -> Any:
    """Return the problem with what must stay together under a split as its groups."""
    if split == "instance":
        return replace(asked, groups=np.array([r.instance_key for r in asked.records]))
    if split == "random":
        return replace(asked, groups=np.arange(len(asked.records)).astype(str))
    return asked


def _require_groups(asked: Any, split: str) -> None:
    """Refuse runs of which nothing can be left out: how wrong the model is could not be told."""
    complete = ~asked.is_censored
    left = sorted(set(asked.groups[complete].tolist()))
    if len(left) >= _LEAST_GROUPS:
        return
    kind = {"instance": "instance type", "random": "run"}.get(split, "program")
    raise ModelError(
        f"only {len(left)} {kind} has complete runs ({', '.join(left) or 'none'}): none can be "
        "left out, so the model's error could not be measured",
        hint=f"add runs of another {kind}"
        + ("" if split == "random" else ", or judge it on single runs: --split random"),
    )


def _both(asked: Any, model: str, *, n_jobs: int, seed: int) -> dict[str, Any]:
    from advisor.learned import evaluate

    def build() -> Any:
        return predictor(model, channels=asked.channels, seed=seed, folds=5)

    scored = evaluate(asked, build, "both", n_jobs=n_jobs, seed=seed, most_folds=_MOST_FOLDS)
    found: dict[str, Any] = scored.overall.to_record()
    return found


def stack_members(
    model: str, *, channels: int, n_jobs: int, seed: int
) -> tuple[tuple[str, Any], ...]:
    """Return the unfitted members of a stack by name."""
    from advisor.learned import SEQUENCE_READINGS, estimator

    settings: dict[str, Any] = {"n_jobs": n_jobs, "random_state": seed}
    own: dict[str, dict[str, Any]] = {
        "ridge": {},
        "gp": {},
        "forest": {"trees": 100},
        "boosting": {"rounds": 300},
        "sequence": {"channels": channels, "readings": SEQUENCE_READINGS if channels else 0},
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


def _table(results: dict[str, Any]) -> list[str]:
    lines = [f"{'left out':18}{'MAPE %':>8}{'p50 %':>7}{'p90 %':>7}{'cover':>7}{'width':>7}"]
    for result in results["left_out"]:
        m = result["overall"]
        mark = " <" if result["name"] == results["chosen"] else ""
        lines.append(
            f"{result['name']:18}{100 * m['mape_fraction']:8.1f}"
            f"{100 * m['median_ape_fraction']:7.1f}{100 * m['p90_ape_fraction']:7.1f}"
            f"{m['coverage']:7.2f}{m['width']:7.2f}{mark}"
        )
    from advisor.train.effect import beside_table

    return [*lines, *beside_table(results["own"])]
