"""``advisor simulate VERB``: replay a job, for the curious.

Every verb has one shape: a question (``advisor.simulate.questions``), the module of its name that
answers it, the answer's record, and the lines and tables of it (``advisor.report.simulation``).
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, Final

import typer

from advisor.cli.options import add, print_json
from advisor.cli.plot import check_drawable, show_plot
from advisor.cli.waiting import waiting
from advisor.simulate import questions

# Verb -> its question, and what is done while the user waits.
_VERBS: Final[dict[str, tuple[type[Any], str]]] = {
    "spot": (questions.Spot, "replaying the job"),
    "queue": (questions.Queue, "replaying the cluster's jobs"),
    "availability": (questions.Availability, "playing jobs on the record"),
    "elastic": (questions.Elastic, "planning"),
    "failures": (questions.Failures, "expecting failures"),
    "peers": (questions.Peers, "predicting the peers' speed"),
    "aggregation": (questions.Aggregation, "packing the gradients"),
    "limits": (questions.Limits, "replaying the jobs"),
}
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "over peers at several sites, with aggregation that jobs share, or under limits.",
)


def _show(verb: str, doing: str, asked: Any) -> None:
    """Answer a question; print the record or its text, and draw the charts where asked."""
    with waiting(doing, is_quiet=asked.as_json):
        found = importlib.import_module(f"advisor.simulate.{verb}").answer(asked)
    plot = getattr(asked, "plot", None)
    check_drawable(found.charts, plot, hint="name a trace with --trace")
    if asked.as_json:
        print_json(found.record)
    else:
        from rich.console import Console

        from advisor.report import show_simulated

        show_simulated(verb, found.record, Console())
    show_plot(found.charts, plot)


for _verb, (_question, _doing) in _VERBS.items():
    add(app, _verb, _question, run=partial(_show, _verb, _doing))
