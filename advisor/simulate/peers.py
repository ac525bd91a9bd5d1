"""Peers that train together and average now and then: how fast they are."""

from __future__ import annotations

import re

from advisor.collectors.derive import find_run, read_recording
from advisor.errors import UsageError
from advisor.estimate import (
    PeerGroup,
    minute_of,
    peers_answer,
    peers_of,
    series_of,
    together,
)  # fmt: skip
from advisor.jobs import Job, load_job
from advisor.planners.systems import FirstMinutes
from advisor.quantities import parse_rate
from advisor.simulate.questions import Simulated, SimulatePeers

_PEER = re.compile(r"(?:(?P<count>\d{1,6})\s*x\s*)?(?P<what>[^@]+?)\s*(?:@\s*(?P<site>[\w.-]+))?$")
_LINK = re.compile(r"(?P<one>[\w.-]+)\s*,\s*(?P<other>[\w.-]+)\s*=\s*(?P<rate>.+)$")


def answer(asked: SimulatePeers) -> Simulated:
    """Predict the speed of peers, each known alone, or from the running job's first minute."""
    if bool(asked.peer) == bool(asked.running):
        raise UsageError(
            "say what is known of the peers, in one way",
            hint="each one alone: --peer 4x85@us; or the running job: --running RUN",
        )
    links = _links(asked.link or [])
    if asked.running:
        found = peers_answer(_running(asked, asked.running, links), samples=asked.samples)
        return Simulated(record=found.to_record())
    peers = [_peer(text) for text in asked.peer or []]
    jobs = [job for _, job in peers if job is not None]
    known = peers_of(
        [group for group, _ in peers], target_batch=asked.target_batch,
        parameters=_parameters(asked.parameters, jobs), links=links,
    )  # fmt: skip
    return Simulated(record=peers_answer(known, samples=asked.samples).to_record())


def _peer(text: str) -> tuple[PeerGroup, Job | None]:
    """Read one group of peers, and the run it names, if it names one."""
    words = _PEER.match(text.strip())
    if words is None:
        raise UsageError(f"cannot read the peers {text!r}", hint="write e.g. 4x85@us")
    count, site = int(words["count"] or 1), words["site"] or ""
    try:
        rate = float(words["what"].removesuffix("/s"))
    except ValueError:
        job = load_job(words["what"])
        rate = job.global_batch / _step_s(job)
        return PeerGroup(count=count, samples_per_s=rate, site=site), job
    return PeerGroup(count=count, samples_per_s=rate, site=site), None


def _step_s(job: Job) -> float:
    if job.measured is None:
        raise UsageError(f"{job.name} was not recorded", hint="name a recorded run, or its rate")
    return job.measured.step_s


def _running(
    asked: SimulatePeers, runs: list[str], links: dict[frozenset[str], float]
) -> FirstMinutes:
    """Return the first minute of the running peers as one row."""
    jobs = [load_job(run) for run in runs]
    minutes = [
        minute_of(series_of(read_recording(find_run(run)), float(job.global_batch)))
        for run, job in zip(runs, jobs, strict=True)
    ]
    if asked.nodes is not None and asked.nodes < len(runs):
        raise UsageError(
            f"{len(runs)} runs of {asked.nodes} peers", hint="name each peer's run once"
        )
    return together(
        minutes, target_batch=asked.target_batch,
        parameters_gb=_parameters(asked.parameters, jobs) / 1e9,
        link_bytes_per_s=min(links.values(), default=float("inf")), peers=asked.nodes,
    )  # fmt: skip


def _parameters(given: float | None, jobs: list[Job]) -> float:
    if given is not None:
        return given
    known = {float(job.work.parameters) for job in jobs if job.work is not None}
    if len(known) != 1:
        raise UsageError(
            "how many parameters the model has is not known", hint="add e.g. --parameters 198M"
        )
    return known.pop()


def _links(texts: list[str]) -> dict[frozenset[str], float]:
    found = {}
    for text in texts:
        words = _LINK.match(text.strip())
        if words is None or words["one"] == words["other"]:
            raise UsageError(f"cannot read the link {text!r}", hint="write e.g. us,eu=210Mbps")
        rate = parse_rate(words["rate"], option="--link")
        if rate <= 0:
            raise UsageError(
                f"the rate of a link must be positive, got {words['rate']}", hint="us,eu=210Mbps"
            )
        found[frozenset((words["one"], words["other"]))] = rate
    return found
