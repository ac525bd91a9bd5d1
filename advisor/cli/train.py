"""``advisor train``: fit models again, one thing fitted a verb.

Without a verb it fits the learned predictors: ``advisor train``, or with their options. The fits
of the constants that ship are the laboratory's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from advisor.cli.options import while_waiting
from advisor.data import laboratory
from advisor.train import Day, Out, day_of, train_models, train_steps

_DEFAULT: Final = "models"


class DefaultVerb(TyperGroup):
    """A group that fits the learned predictors where no verb is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default verb before nothing, and before options that are not the group's own.

        What completes a line in a shell sees what stands there.
        """
        is_bare = not args and not ctx.resilient_parsing
        if is_bare or (args and args[0].startswith("-") and args[0] != "--help"):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultVerb,
    add_completion=False,
    rich_markup_mode=None,
    help="Fit models again from measurements. Without a verb it does what `models` does, with its "
    "options.",
)
_Data = Annotated[
    Path | None, typer.Option("--data", help="Measurements laid out like shared/data.")
]
_Table = Annotated[
    Path | None, typer.Option("--data", help="Table of published runs (default: packaged).")
]
# Fits of the constants that ship, which the laboratory makes: what their verbs say.
_FITS: Final = {
    "device-model": "Fit the device model on published measurements.",
    "scaling": "Fit the constants of data-parallel scaling.",
    "memory": "Fit the constants of the memory model from measurements.",
    "layout-model": "Fit the constants of the layout model on published runs.",
    "campaigns": "Fit what a whole training run adds to its steps.",
    "peers": "Fit the model of peers that share a batch across sites.",
}


def _fit(verb: str) -> Callable[..., None]:
    def command(given: _Data = None, out: Out = None, day: Day = None) -> None:
        laboratory("advisor.lab.fit.verbs").fit(verb, given, out, day)

    command.__doc__ = _FITS[verb]
    if verb == "campaigns":
        command.__annotations__["given"] = _Table
    return command


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Folders of trained_models, or paths of such folders (default: all)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check only the models that are fitted in seconds.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the folder with the new fit.")
    ] = False,
    day: Annotated[
        str | None, typer.Option(help="With --replace: day of the fits (default: today).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Refit the shipped models by the commands on their cards."""
    again = laboratory("advisor.lab.fit.check")
    found = []
    for name in names or again.possible(is_quick=quick):
        folder = again.folder_of(name)
        if not as_json:
            typer.echo(f"fitting {folder.name} again ...", err=True)
        checked = again.check(folder, day_of(day) if replace else None)
        found.append(checked)
        if not as_json:
            typer.echo(checked.text(is_replaced=replace))
    if as_json:
        record = {"schema_version": 1, "models": [checked.to_record() for checked in found]}
        typer.echo(json.dumps(record, indent=2))
    if not replace and any(checked.differences for checked in found):
        raise typer.Exit(1)


for _verb in _FITS:
    app.command(_verb)(while_waiting("fitting")(_fit(_verb)))
app.command("models")(train_models)
app.command("steps")(train_steps)
app.command("check")(check)
