"""``advisor train``: fit models again, one thing fitted a verb.

Without a verb it fits the learned predictors: ``advisor train --data mine.jsonl``. The fits of the
constants that ship are the laboratory's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperGroup

from advisor.cli import elsewhere
from advisor.cli.waiting import while_waiting
from advisor.errors import UsageError
from advisor.train import models

_DEFAULT: Final = "models"
_OF_THE_LABORATORY: Final = (
    "device-model", "scaling", "memory", "layout-model", "campaigns", "peers", "check",
)  # fmt: skip


class DefaultVerb(TyperGroup):
    """A group that takes options without a verb as those of the learned predictors."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default verb before options that are not the group's own."""
        if args and args[0].startswith("-") and args[0] != "--help":
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultVerb,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Fit models again from measurements; options without a verb are those of `models`.",
)
app.command(_DEFAULT)(models.command)


def _brought(name: str) -> Callable[..., Any]:
    """Return a fit of the laboratory, or what says how to install it."""
    try:
        fit: Callable[..., Any] = elsewhere.load(f"train.{name}")
    except UsageError as error:
        absent = error

        def refuse() -> None:
            """Fit constants that ship; the laboratory does, which is not installed."""
            raise absent

        return refuse
    return fit if name == "check" else while_waiting("fitting")(fit)


for _name in _OF_THE_LABORATORY:
    app.command(_name)(_brought(_name))
