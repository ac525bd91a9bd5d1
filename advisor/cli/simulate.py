"""``advisor simulate VERB``: replay a job, for the curious.

Every verb has one shape: a question (``advisor.simulate.questions``), the module of its name that
answers it, the answer's record, and the lines and tables of it (``advisor.report.simulation``).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import typer

from advisor.cli.options import add, print_json
from advisor.cli.terminal import check_drawable, show_plot, waiting
from advisor.simulate import QUESTIONS, simulated

# What is done while the user waits.
_DOING: Final = {
    "spot": "replaying the job", "queue": "replaying the cluster's jobs",
    "availability": "playing jobs on the record", "elastic": "planning",
    "failures": "expecting failures", "peers": "predicting the peers' speed",
    "aggregation": "packing the gradients", "limits": "replaying the jobs",
}  # fmt: skip
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "over peers at several sites, with aggregation that jobs share, or under limits.",
)


def _show(verb: str, asked: Any) -> None:
    """Answer a question; print the record or its text, and draw the charts where asked."""
    with waiting(_DOING[verb], is_quiet=asked.as_json):
        found = simulated(verb, asked)
    plot = getattr(asked, "plot", None)
    check_drawable(found.charts, plot, hint="name a trace with --trace")
    if asked.as_json:
        print_json(found.record)
    else:
        from rich.console import Console

        from advisor.report import show_simulated

        show_simulated(verb, found.record, Console())
    show_plot(found.charts, plot)


for _verb, _question in QUESTIONS.items():
    add(app, _verb, _question, run=partial(_show, _verb))
