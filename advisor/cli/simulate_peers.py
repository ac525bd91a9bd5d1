"""``advisor simulate peers``: predict how fast peers train that average now and then."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.quantity_types import COUNT, quantity
from advisor.cli.simulate_options import AsJson, show
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.jobs.job import Job
    from advisor.planners.links.peers import FirstMinutes, Peers
    from advisor.predict.peers import PeerGroup

_PEER = re.compile(r"(?:(?P<count>\d{1,6})\s*x\s*)?(?P<what>[^@]+?)\s*(?:@\s*(?P<site>[\w.-]+))?$")
_LINK = re.compile(r"(?P<one>[\w.-]+)\s*,\s*(?P<other>[\w.-]+)\s*=\s*(?P<rate>.+)$")


def command(
    target_batch: Annotated[
        float,
        quantity(
            COUNT,
            "--target-batch",
            help="Samples that all peers accumulate between two averagings.",
        ),
    ],
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="Equal peers: COUNT x RATE @ SITE, e.g. '4x85@us'. RATE is one's own samples/s, "
            "or a recorded run of it alone. Repeatable.",
        ),
    ] = None,
    running: Annotated[
        list[str] | None,
        typer.Option(
            "--running",
            help="A recorded run of one peer while all train: its first minute is used. "
            "Repeatable, in place of --peer.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="With --running: how many peers train (default: those named)."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link",
            help="Bandwidth between two sites, of one stream as iperf measures it: "
            "'us,eu=210Mbps'. Repeatable.",
        ),
    ] = None,
    parameters: Annotated[
        float | None,
        quantity(
            COUNT, "--parameters", help="Parameters of the model: 198M (default: as recorded)."
        ),
    ] = None,
    samples: Annotated[
        float | None,
        quantity(COUNT, "--samples", help="Samples of the whole job, for its time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the speed of peers that share a batch (Hivemind).

    Give the rate of each peer alone (`--peer`), or the first minute of the running job
    (`--running`). A link between sites slows every averaging down.
    """
    from advisor.predict.peers import answer, peers_of

    if bool(peer) == bool(running):
        raise UsageError(
            "say what is known of the peers, in one way",
            hint="each one alone: --peer 4x85@us; or the running job: --running RUN",
        )
    links = _links(link or [])
    asked: Peers | FirstMinutes
    if running:
        asked = _running(running, nodes, target_batch, parameters, links)
    else:
        found = [_peer(text) for text in peer or []]
        jobs = [job for _, job in found if job is not None]
        asked = peers_of(
            [group for group, _ in found], target_batch=target_batch,
            parameters=_parameters(parameters, jobs), links=links,
        )  # fmt: skip
    show(answer(asked, samples=samples).to_record(), (), None, as_json, "peers")


def _peer(text: str) -> tuple[PeerGroup, Job | None]:
    """Read one group of peers, and the run it names, if it names one."""
    from advisor.jobs.loading import load_job
    from advisor.predict.peers import PeerGroup

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
    runs: list[str], nodes: int | None, target_batch: float, parameters: float | None,
    links: dict[frozenset[str], float],
) -> FirstMinutes:  # fmt: skip
    """Return the first minute of the running peers as one row."""
    from advisor.collectors import store
    from advisor.jobs.loading import load_job
    from advisor.predict.peer_minutes import minute_of, series_of, together

    jobs = [load_job(run) for run in runs]
    minutes = [
        minute_of(series_of(store.read_recording(store.find_run(run)), float(job.global_batch)))
        for run, job in zip(runs, jobs, strict=True)
    ]
    if nodes is not None and nodes < len(runs):
        raise UsageError(f"{len(runs)} runs of {nodes} peers", hint="name each peer's run once")
    return together(
        minutes, target_batch=target_batch, parameters_gb=_parameters(parameters, jobs) / 1e9,
        link_bytes_per_s=min(links.values(), default=float("inf")), peers=nodes,
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
    from advisor.quantities import parse_rate

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
