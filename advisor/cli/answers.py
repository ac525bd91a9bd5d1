"""``advisor recommend``, ``predict``, ``plan`` and ``advise``: answers about one job."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import typer

from advisor import (
    advice,
    answer,
    ask,
    catalogue,
    estimate,
    jobs,
    machines,
    rank,
    report,
    show,
    simulate,
    words,
)
from advisor.ask import (
    BYTES_WITH_UNIT,
    CLUSTER,
    CONSTRAINTS,
    JOB,
    LAYOUT,
    OUTPUT,
    PRICES,
    RATE,
    SECONDS_WITH_UNIT,
    SETUP,
    Drawn,
    JobSpec,
    Printed,
    Question,
    asked,
    option,
)
from advisor.cli.options import given_flags, predictor_of, print_json, put, run_argument, with_run
from advisor.cli.terminal import TYPED, check_drawable, is_terminal, show_plot, waiting
from advisor.collectors import atomic, derive
from advisor.errors import DoesNotFitError, DoesNotRunError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Advise(Printed):
    """Suggest changes to a job, with the time and cost that each saves.

    Lists only changes that the recording shows to apply, strongest first. Exit code 3 means that
    no machine satisfies the constraints for the unchanged job.
    """

    # fmt: off
    question: Question = asked(JOB, CONSTRAINTS, PRICES, LAYOUT, SETUP)
    recorded: str | None = run_argument()
    on: str | None = option("Machine type to judge the job on: g5.xlarge or aws:g5.xlarge; `here` "
        "is this machine (default: what advisor recommend would pick).")
    count: int | None = option("Number of these machines (default: 1, or as a recipe says).",
        min=1)
    beside: str | None = option("Another run to share the device with; shows the speed and the "
        "bill of each.", metavar="RUN")
    pairs: Path | None = option("With --beside: CSV of jobs measured together on such a device, "
        "with the columns first,second,first_rate,second_rate (names of runs, and rates over "
        "those alone).", metavar="FILE")
    serving: bool = option("Answer for serving instead of training: how many experts of a mixture "
        "must stay on the device.", default=False)
    latency: float | None = option("With --serving: maximum time per token, e.g. 0.05s (default: "
        "twice that with every expert on the device).", SECONDS_WITH_UNIT)
    memory: float | None = option("With --serving: memory for weights on the device (default: all "
        "it has).", BYTES_WITH_UNIT)
    link: float | None = option("With --serving: bandwidth over which experts are loaded, e.g. "
        "25GB/s (default: the card's PCIe; on a processor its disk).", RATE)
    borrow: float | None = option("Bandwidth to other machines' memory, e.g. 3GB/s: shows what a "
        "smaller machine that borrows memory would take (needs a recording with --working-set).",
        RATE)
    requests: int = option("With --serving: requests decoded together (default: 1).",
        default=1, metavar="N", min=1)
    explain: int | None = option("Show advice N in full, with what to paste.",
        panel=OUTPUT, metavar="N")
    full: bool = option("Show all advice, not only what fits on one screen.",
        default=False, panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor import api

        asked = with_run(self.question, self.recorded)
        wanted = advice.Serving(
            token_s=self.latency, memory_bytes=self.memory, link_bytes_per_s=self.link,
            requests=self.requests,
        )  # fmt: skip
        if self.serving and self.beside is not None:
            raise UsageError(
                "--serving cannot be combined with --beside", hint="ask for one of them"
            )
        if self.pairs is not None and self.beside is None:
            raise UsageError("--pairs is of --beside", hint="name the other run: --beside RUN")
        if not self.serving and wanted != advice.Serving():
            raise UsageError(
                "--latency, --memory, --link and --requests are of serving", hint="add --serving"
            )
        with waiting("pricing the job with each change", is_quiet=self.as_json):
            predictor = predictor_of(asked)
            job = api.job_to_advise(asked, predictor)
            found = api.advised(
                job, asked, api.recording_of(asked.job), on=self.on, count=_number(self.count),
                predictor=predictor,
                beside=None if self.beside is None else api.job_of(JobSpec(run=self.beside)),
                pairs=() if self.pairs is None else advice.read_pairs(self.pairs),
                serving=wanted if self.serving else None, borrow=self.borrow,
            )  # fmt: skip
        record = found.to_record()
        if self.as_json:
            print_json(record)
        else:
            width = shutil.get_terminal_size().columns
            most = words.SCREEN_LINES if sys.stdout.isatty() and not self.full else None
            lines = (
                words.advice_text(record, width=width, most=most, command=TYPED.get())
                if self.explain is None
                else words.explained_advice(record, self.explain, width=width)
            )
            if self.serving:
                lines += [line for one in found for line in words.cache_table(one.details)]
            typer.echo("\n".join(lines))
        if not found.meets_constraints:
            raise typer.Exit(3)


_MEMORY: Final = "Show what a device's memory is made of, and how likely the job fits."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLayout(Drawn):
    """Choose how to spread a training job over a cluster, and print what to run.

    With --for, say how much the cluster trains in that time, of one job or of models of several
    sizes. Exit code 3 means that no layout fits; the message says what would.
    """

    # fmt: off
    question: Question = asked(
        ("cluster", "within"), JOB, ("objective", "coverage"), PRICES, LAYOUT, SETUP)
    stage_layers: str | None = option("Layers of each pipeline stage, in order, over unlike "
        "machines (default: as makes the slowest stage fastest).", metavar="N,N,...")
    memory: bool = option(_MEMORY, default=False, panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        record = planned(self.question, self.stage_layers, is_quiet=self.as_json)
        text = partial(_plan_text, record, has_memory=self.memory)
        put(record, text, as_json=self.as_json)
        if self.plot is not None:
            _plot_plan(record, self.plot)


def _number(count: int | None) -> int:
    """Return how many are asked about: one where neither a flag nor a recipe says."""
    return 1 if count is None else count


def planned(
    question: Question, stage_layers: str | None = None, *, is_quiet: bool = False
) -> dict[str, Any]:
    """Return the record of a plan on the machines of the question, or of what they train."""
    if question.cluster.machines is None:
        raise UsageError("no cluster is given", hint="--cluster 8xA100-80GB:nvlink@200Gbps")
    within_h = question.cluster.within_h
    is_of_sizes = within_h is not None and not question.job.names_a_job
    is_of_sizes &= question.job.runs is None
    with waiting("searching layouts", is_quiet=is_quiet):
        known = catalogue.Catalogue.load(question.catalogue, overrides=question.overrides)
        cluster = machines.read_cluster(question.cluster.machines, known)
        job, script = (_smallest(question), ()) if is_of_sizes else _job(question, known)
        asked = rank.PlanQuestion(
            job=job, cluster=cluster, objective=question.objective,
            space=_space(question, stage_layers),
            coverage=question.constraints.coverage, asked=question.layout, command=script,
            predictor=estimate.Predictor(known), within_h=within_h,
        )  # fmt: skip
        if is_of_sizes:
            return rank.sizes_within(asked, question.job, question.setup).to_record()
        return (rank.plan(asked) if within_h is None else rank.trained_within(asked)).to_record()


def _smallest(question: Question) -> jobs.Job:
    """Return the job of the smallest size, for a question that is asked of all sizes."""
    return rank.job_of_size(rank.SIZES[0], question.job, question.setup, devices=1)


def _plan_text(record: Mapping[str, Any], *, has_memory: bool = False) -> str:
    if "plans" in record:
        return words.show(record, has_memory=has_memory)
    return words.within_text(record)


def _plot_plan(record: Mapping[str, Any], plot: str) -> None:
    if "plans" not in record:
        raise UsageError("--plot is of one plan", hint="leave --for or --plot out")
    show_plot(show.plan_charts(record), plot)


def _space(question: Question, stage_layers: str | None) -> Any:
    """Return the layouts to search, with the layers of each stage where they are given."""
    space = ask.layout_space(question.layout, estimate.SPACE) or estimate.SPACE
    if stage_layers is None:
        return space
    try:
        cut = tuple(int(one) for one in stage_layers.split(","))
    except ValueError as error:
        raise UsageError(
            f"--stage-layers: cannot read {stage_layers!r}", hint="write e.g. 14,10"
        ) from error
    if space.pp not in (None, len(cut)):
        raise UsageError(
            f"--stage-layers has {len(cut)} stages, --pp {space.pp}", hint="say one of them"
        )
    return replace(space, pp=len(cut), stage_layers=cut)


def _job(question: Question, known: catalogue.Catalogue) -> tuple[jobs.Job, tuple[str, ...]]:
    """Return the job, and the command line that a recorded one was started with."""
    spec = question.job
    if spec.run is None and (spec.names_a_job or spec.is_known_by_runs):
        return estimate.job_of(spec, question.setup, catalogue=lambda: known), ()
    is_latest = spec.run in (None, "latest")
    path = derive.latest_run() if is_latest else derive.find_run(str(spec.run))
    recording = derive.read_recording(path)
    spec = replace(spec, run=str(path))
    if recording.total_work is not None or spec.has_length:
        return estimate.job_of(spec, question.setup, catalogue=lambda: known), recording.command
    # A layout is planned for one step: how many there are does not matter.
    job = estimate.job_of(replace(spec, total_steps=1.0), question.setup, catalogue=lambda: known)
    return replace(job, total_source=jobs.NO_LENGTH), recording.command


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict(Printed):
    """Estimate a job on one configuration: a recorded run, a job file, or a described model.

    Every number is marked: measured, looked up, computed, learned or given. Exit code 3 means that
    the job does not fit the machines.
    """

    # fmt: off
    question: Question = asked(
        JOB, ("completion", "known_network", "coverage"), PRICES, LAYOUT, SETUP)
    on: str | None = option("Machine type: g5.xlarge or aws:g5.xlarge; `here` is this machine.")
    gpu: str | None = option("Accelerator of any provider: L4, H100, MI300X.")
    count: int | None = option("Number of machines (--on), or of accelerators (--gpu): more than "
        "one rented machine holds are in several, whose network is assumed (default: 1, or as a "
        "recipe says).")
    save_job: Path | None = option("Also write the job to this file.")
    explain: bool = option("With --on: show which features changed the learned time and cost.",
        default=False, panel=OUTPUT)
    trace: Path | None = option("Also write the predicted step as a Chrome trace, which Perfetto "
        "opens: one lane a rank.", panel=OUTPUT)
    snapshot: Path | None = option("Also write the predicted memory as a snapshot of PyTorch's "
        "allocator, which pytorch.org/memory_viz opens.", panel=OUTPUT)
    memory: bool = option(_MEMORY, default=False, panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor import api

        question = self.question
        predictor = cache(partial(predictor_of, question))
        with waiting("reading the job", is_quiet=self.as_json):
            wanted = api.job_of(
                question.job, question.setup, catalogue=lambda: predictor().catalogue
            )
        if self.save_job is not None:
            jobs.write_job(wanted, self.save_job)
            typer.echo(f"wrote {self.save_job}", err=True)
            if self.on is None and self.gpu is None:
                return
        if self.explain and self.on in (None, "here"):
            raise UsageError("--explain is of machines that are sold", hint="add --on g5.xlarge")
        try:
            with waiting("estimating", is_quiet=self.as_json):
                found = api.estimate(
                    wanted, on=self.on, gpu=self.gpu, count=_number(self.count),
                    coverage=question.constraints.coverage, layout=question.layout,
                    completion=question.completion,
                    known_network=question.constraints.known_network, predictor=predictor(),
                )  # fmt: skip
        except DoesNotFitError as error:
            raise DoesNotRunError(str(error), hint=self._what_fits(predictor(), error)) from error
        self._write_step(predictor(), wanted, found)
        record = {"schema_version": answer.SCHEMA_VERSION, **found.to_record()}
        if self.explain and self.on is not None:
            provider, _, name = self.on.rpartition(":")
            record["effects"] = estimate.moved_by(
                predictor(), wanted, name, provider=provider or None, count=_number(self.count)
            )
        width = shutil.get_terminal_size().columns
        text = partial(words.prediction_text, record, width=width, has_memory=self.memory)
        put(record, text, as_json=self.as_json)

    def _what_fits(self, predictor: estimate.Predictor, refused: DoesNotFitError) -> str:
        """Return what makes it fit, and what the refusal says."""
        found = rank.fitting(
            self.question, predictor, gpu=self.gpu, on=self.on, count=_number(self.count)
        )  # fmt: skip
        if not found.can_fit:
            return refused.hint
        return f"it fits with {found.words}: `advisor fit` says what each gains; {refused.hint}"

    def _write_step(
        self, predictor: estimate.Predictor, job: jobs.Job, found: answer.Answer
    ) -> None:
        """Write the predicted step, and its memory, as files that are asked for."""
        if self.trace is not None:
            place = estimate.machines_asked(
                predictor, job, on=self.on, gpu=self.gpu, count=_number(self.count)
            )
            trace = report.step_trace(predictor, job, place, found, self.question.layout)
            atomic.write_text(self.trace, json.dumps(trace))
            typer.echo(f"wrote {self.trace}: open it in ui.perfetto.dev", err=True)
        if self.snapshot is not None:
            atomic.write_bytes(self.snapshot, report.snapshot_file(job, found))
            typer.echo(f"wrote {self.snapshot}: open it in pytorch.org/memory_viz", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Printed):
    """Say what makes a job fit in memory: changes in order, what each gains and costs.

    Shows what each change gains alone, how it is written for the job's stack, the cheapest machine
    that holds the job, and the largest micro-batch and sequence. Exit code 3 means that no change
    makes it fit.
    """

    # fmt: off
    question: Question = asked(JOB, PRICES, LAYOUT, SETUP)
    on: str | None = option("Machine type: g5.xlarge or aws:g5.xlarge.")
    gpu: str | None = option("Accelerator of any provider: L4, H100, MI300X.")
    count: int | None = option("Number of machines (--on), or of accelerators (--gpu) (default: "
        "1, or as a recipe says).")
    # fmt: on

    def __call__(self) -> None:
        with waiting("asking with every change", is_quiet=self.as_json):
            found = rank.fitting(
                self.question, predictor_of(self.question), gpu=self.gpu, on=self.on,
                count=_number(self.count),
            )  # fmt: skip
        record, width = found.to_record(), shutil.get_terminal_size().columns
        put(record, partial(words.fitting_text, record, width=width), as_json=self.as_json)
        if not found.fits and not found.can_fit:
            raise typer.Exit(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommend(Drawn):
    """Recommend what to rent for a job, by training time and cost.

    With --cluster and no trace, answer for those machines alone, with the record of advisor plan.
    Exit code 3 means that nothing satisfies the constraints; the nearest misses are shown.
    """

    # fmt: off
    question: Question = asked(JOB, CONSTRAINTS, PRICES, CLUSTER, LAYOUT, SETUP)
    explain: int | None = option("Explain row N in full, with everything it assumes.",
        panel=OUTPUT, metavar="N")
    full: bool = option("Show every row, not only what fits on one screen.",
        default=False, panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor import api

        question = self.question
        if question.cluster.trace is None and question.cluster.machines is not None:
            own_flags = {"--explain": self.explain is not None, "--full": self.full}
            _refuse_beside_machines(question, own_flags)
            _recommend_given(question, plot=self.plot, as_json=self.as_json)
            return
        if question.cluster.within_h is not None:
            raise UsageError(
                "--for needs machines", hint="name them: --cluster 8xA100-80GB --for 3d"
            )
        is_whole = self.as_json or self.explain is not None
        constraints = replace(question.constraints, with_direct_costs=is_whole)
        question = replace(question, constraints=constraints)
        with waiting("pricing the job on every offer", is_quiet=self.as_json):
            predictor = predictor_of(question)
            job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
            found = api.ranked(
                job, question, predictor=predictor, recording=api.recording_of(question.job)
            )
            own = None
            if (question.cluster.trace, question.cluster.machines) != (None, None):
                own = simulate.comparison(question, job, found, predictor)
        record = found.to_record() if own is None else own.to_record()
        charts = _charts(record, self.plot)
        if self.as_json:
            print_json(record)
        elif self.explain is not None:
            width = shutil.get_terminal_size().columns
            typer.echo(words.explained_text(record, self.explain, width=width))
        else:
            _show(question, record, full=self.full)
        show_plot(charts, self.plot)
        if not found.picks and not (own is not None and own.meets_constraints):
            raise typer.Exit(3)


# What is asked of machines that are given; other limits choose what to rent.
_OF_GIVEN: Final = ("budget", "deadline", "coverage", "cluster", "within")


def _refuse_beside_machines(question: Question, shown: Mapping[str, bool]) -> None:
    """Refuse flags that say nothing of given machines; settings of all verbs are no flags.

    ``shown``: the verb's own flags, and whether they are given.
    """
    others = [name for name in (*CONSTRAINTS, *CLUSTER) if name not in _OF_GIVEN]
    flags = [*given_flags(question, others), *(flag for flag, is_said in shown.items() if is_said)]
    if flags:
        verb = "does" if len(flags) == 1 else "do"
        raise UsageError(
            f"{', '.join(flags)} {verb} not apply to machines that are given (--cluster)",
            hint="leave --cluster out to choose among rented ones, or add --cluster-trace to "
            "compare with them",
        )


def _recommend_given(question: Question, *, plot: str | None, as_json: bool) -> None:
    """Answer for machines that are given: what ``advisor plan`` answers, held to the constraints.

    Exit code 3 where the best way on them keeps neither deadline nor budget.
    """
    limits, record = question.constraints, planned(question, is_quiet=as_json)
    put(record, partial(_plan_text, record), as_json=as_json)
    if plot is not None:
        _plot_plan(record, plot)
    best = record["plans"][0] if "plans" in record else record["rows"][0]["plan"]
    for flag, most, found in (
        ("--deadline", limits.deadline_h, best["training_time_h"]),
        ("--budget", limits.budget_usd, best["cost_usd"]),
    ):
        if most is not None and found is not None and found["value"] > most:
            typer.echo(f"note: the best way on these machines misses {flag}", err=True)
            raise typer.Exit(3)


def _charts(record: Mapping[str, Any], plot: str | None) -> list[show.Chart]:
    """Return the chart of an answer where it is to be drawn; a file has room for names."""
    if plot is None:
        return []

    charts = show.front_chart(record, names=not is_terminal(plot))
    check_drawable(charts, plot, hint="relax the constraints")
    return charts


def _show(question: Question, record: Mapping[str, Any], *, full: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    words.show_recommendation(record, console, full=full, command=TYPED.get())
    if (own := record.get("own_cluster")) is not None:
        report.show_simulation(own, Console())
    if question.constraints.with_probes:
        words.show_probes(record, Console())
    if any(map(jobs.file_in, derive.local_folders())):  # nothing drifts where nothing was noted
        from advisor.cli.runs import warn_of_drift

        warn_of_drift()
