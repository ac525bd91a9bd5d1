"""The chores of a job: ends of epochs, checkpoints, waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from advisor.advice.edits import cut_of, without
from advisor.advice.facts import Facts, saved, source
from advisor.advice.record import Advice, How
from advisor.advice.script import SourceScript, last_name
from advisor.planners.goodput.goodput import expected_completion
from advisor.predict.completion import checkpoint_s
from advisor.quantities import seconds_text

# Ends of epochs below this share of the job are not worth doing more seldom.
_ENDS: Final = 0.05
_EVERY: Final = 2
_READS: Final = ("item", "tolist", "numpy", "cpu")
# A quarter either way of a saving that rests on a rate of failures: between the published ones.
_FAILURES_LOG_SD: Final = 0.25


def _ends(facts: Facts) -> Iterator[Advice | None]:
    job = facts.job
    share = job.epochs * job.epoch_end_steps / job.paid_steps
    if job.epochs < 2 * _EVERY or share < _ENDS:
        return
    yield facts.priced(
        replace(job, epochs=job.epochs / _EVERY),
        name="validate-less",
        change="Validate (and save) after every second epoch.",
        evidence="measured",
        rests_on=f"ends of epochs take {share:.0%} of the job, {job.epoch_end_steps:.3g} steps "
        "each",
        condition="Where nothing stops early on a single epoch's figure.",
        how=How(kind="lines", text=f"if epoch % {_EVERY} == 0 or epoch == epochs - 1:\n"
                "    validate(...)"),
        effect_log_sd=job.epoch_end_log_sd,
    )  # fmt: skip


def _checkpoints(facts: Facts) -> Iterator[Advice | None]:
    """Offer the interval that loses least to saves and failures, where the script has another."""
    job, recording = facts.job, facts.recording
    saves = None if recording is None else recording.saves
    step = None if recording is None else recording.step_time
    if saves is None or step is None or saves.count < 2:
        return
    now, seen = facts.now, step.steps + step.warmup_steps
    work_s = now.step_time_s.value * job.paid_steps
    interval_s = now.step_time_s.value * seen / saves.count
    save_s = saves.seconds if facts.is_here else max(checkpoint_s(job), saves.seconds)
    if work_s < 2 * interval_s:
        return
    usual: dict[str, Any] = {
        "devices": now.layout.devices,
        "nodes": sum(count for _, count in now.configuration.parts),
        "checkpoint_s": save_s,
        "restart_s": max(job.startup_s, 1.0),
    }
    own = expected_completion(work_s, checkpoint_interval_s=interval_s, **usual)
    best = expected_completion(work_s, **usual)
    factor = float(best.expected_s[0] / own.expected_s[0])
    time_h = now.training_time_h if facts.is_here else now.training_time_h.scaled(1.0 / factor)
    cost = now.cost_usd if facts.is_here else now.cost_usd.scaled(1.0 / factor)
    wanted = float(best.checkpoint_interval_s[0])
    yield Advice(
        name="checkpoint-interval",
        change=f"Save every {seconds_text(wanted)} in place of every {seconds_text(interval_s)}.",
        time_saved_h=saved(time_h, factor, _FAILURES_LOG_SD),
        cost_saved_usd=saved(cost, factor, _FAILURES_LOG_SD),
        time_factor=factor,
        cost_factor=factor if cost.value > 0 else 1.0,
        evidence="formula",
        rests_on=f"{saves.count} saves of {seconds_text(save_s)} in {seen:,} recorded steps; the "
        "interval that loses least to saves and failures (Young, Daly), at Llama 3's rate of "
        "failures",
        condition="As often as the published rate of failures; spot machines need more saves.",
        how=How(kind="lines", text=f"save_every = {max(round(wanted / now.step_time_s.value), 1)}"
                "  # steps"),
    )  # fmt: skip


def _waiting(facts: Facts) -> Iterator[Advice | None]:
    """Offer not to read a number of every step back: the device is waited for each time."""
    script = SourceScript.of(facts.recording)
    if script is None:
        return
    calls = script.each_step(lambda call: last_name(call.func) in _READS and not call.args)
    cut = cut_of(
        facts, lambda one: one.name == "aten::_local_scalar_dense" and one.phase != "optimizer"
    )
    if not calls or cut is None:
        return
    lines = ", ".join(str(call.lineno) for call in calls)
    yield facts.priced(
        without(facts.job, cut),
        name="read-less",
        change=f"Do not read results back in every step ({script.path.name}:{lines}).",
        evidence="measured",
        rests_on=f"{sum(one.count for one in cut.operators)} reads a step; each waits until the "
        "device has done all that it was told",
        condition="Where the number is only logged: keep the tensor, read it every 100 steps.",
        how=How(
            kind="lines",
            text="total += loss.detach()  # in the step; total.item() where it is printed",
        ),
    )


advise: Final = source("chores", _ends, _checkpoints, _waiting)
