"""The steps of the whole job: what the hooks found, made into one number with a source."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.collectors.events import Events
from advisor.collectors.loops import is_episodic, of_loops
from advisor.collectors.passes import steps_per_epoch
from advisor.collectors.recording import Recording, TotalWork
from advisor.collectors.rounds import count_rounds, has_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWork:
    """What the user said on the command line; at most one of them."""

    epochs: float | None = None
    total_steps: int | None = None
    total_samples: int | None = None


def total_work(
    events: Events, given: GivenWork, *, samples_per_step: float, is_finished: bool = False
) -> TotalWork | None:
    """Return the job's length, or None where nobody says.

    Parameters
    ----------
    samples_per_step : float
        Over all processes; 0 where unknown.
    """
    if given.total_steps is not None:
        return TotalWork.of(given.total_steps, None, "--total-steps", "given")
    if given.total_samples is not None and samples_per_step > 0:
        steps = given.total_samples / samples_per_step
        return TotalWork.of(steps, None, "--total-samples", "given")
    if given.epochs is not None and (per_epoch := _steps_per_epoch(events)) is not None:
        return TotalWork.of(given.epochs * per_epoch, given.epochs, "--epochs", "given")
    stated = events.fact("total_work")
    if stated.get("steps"):
        return TotalWork.of(stated["steps"], None, "advisor.step(total_steps=...)", "certain")
    counted = count_rounds(events, is_finished=is_finished)
    if counted is not None:
        return counted
    found = events.facts.get("work", [])
    if not found or ("fit" in events.facts and has_rounds(events)):  # the loops around one fit
        return None
    for candidate in found[-1].get("candidates", []):
        if candidate.get("steps"):
            epochs, sure = candidate.get("epochs"), candidate["confidence"]
            return TotalWork.of(candidate["steps"], epochs, candidate["source"], sure)
        if "loops" in candidate:
            if length := of_loops(candidate["loops"], found, events):
                source = candidate["source"]
                return TotalWork.of(length.steps, length.epochs, source, length.confidence)
            if is_episodic(candidate["loops"]):  # an argument would say an episode's length
                return None
    return _from_arguments(found[-1].get("arguments", {}), events)


def as_it_ended(found: TotalWork | None, events: Events, given: GivenWork) -> TotalWork | None:
    """Return the length of a script that ran to its own end: what it was, whatever was found.

    What the user says is about the whole job, and stays; so does what was found and is right.
    Frameworks' own rounds know their end themselves.
    """
    is_said = given != GivenWork() or "total_work" in events.facts or has_rounds(events)
    is_right = found is not None and found.steps == events.completed
    if is_said or is_right or not events.completed or "obeyed" in events.facts:
        return found
    return TotalWork.of(events.completed, None, "the run finished by itself", "certain")


def _steps_per_epoch(events: Events) -> float | None:
    """Return the steps of an epoch: of the training loader's, else of a loop over epochs."""
    per_epoch = steps_per_epoch(events)
    if per_epoch is not None or events.loader_fact():
        return per_epoch
    found = events.facts.get("work", [])
    for candidate in found[-1].get("candidates", []) if found else []:
        if "loops" in candidate and (length := of_loops(candidate["loops"], found, events)):
            return length.steps_per_epoch
    return None


def length_options(seen: Recording) -> list[str]:
    """Return the options that can say how long the job of a recording is.

    ``--epochs`` needs the length of an epoch, ``--total-samples`` the samples of a step.
    """
    loading, work = seen.loading, seen.total_work
    has_loader = loading is not None and bool(loading.batches_per_epoch or loading.dataset_samples)
    has_epochs = has_loader or (work is not None and bool(work.epochs))
    epochs = ["--epochs"] if has_epochs else []
    return [*epochs, "--total-steps", *(["--total-samples"] if seen.step_samples else [])]


def length_hint(seen: Recording) -> str:
    """Return which options say how long the job is, as a sentence's object."""
    options = [f"{option} N" for option in length_options(seen)]
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)


def unused(given: GivenWork, work: TotalWork | None, seen: Recording) -> str:
    """Return a warning if a length that was given could not be used; empty otherwise."""
    if work is not None and work.confidence == "given":
        return ""
    if given.epochs is not None:
        what = f"--epochs {given.epochs:g} has no effect: how many steps an epoch has was not seen"
    elif given.total_samples is not None:
        what = f"--total-samples {given.total_samples} has no effect: no batch size was seen"
    else:
        return ""
    return f"{what}; use {length_hint(seen)}"


def _from_arguments(arguments: dict[str, float], events: Events) -> TotalWork | None:
    """Fall back on an argument that says it: steps, or epochs of a loader of known length."""
    for name in ("max_steps", "total_steps", "num_steps", "steps", "max_iters", "iterations"):
        if arguments.get(name, 0) > 0:
            return TotalWork.of(arguments[name], None, f"argument --{name}", "weak")
    per_epoch = steps_per_epoch(events)
    for name in ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs"):
        if per_epoch is not None and arguments.get(name, 0) > 0:
            epochs = float(arguments[name])
            return TotalWork.of(epochs * per_epoch, epochs, f"argument --{name}", "weak")
    return None
