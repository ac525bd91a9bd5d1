"""``advisor train``: fit the constants and models again, one thing fitted a verb.

Without a verb it fits the learned predictors: ``advisor train --data mine.jsonl``.
"""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperGroup

from advisor.cli.waiting import while_waiting
from advisor.train import (
    campaigns,
    check,
    device_fit,
    layout_model,
    memory_model,
    models,
    peers,
    scaling,
)

_DEFAULT: Final = "models"


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
app.command("device-model")(while_waiting("fitting")(device_fit.command))
app.command("scaling")(while_waiting("fitting")(scaling.command))
app.command("memory")(while_waiting("fitting")(memory_model.command))
app.command("layout-model")(while_waiting("fitting")(layout_model.command))
app.command("campaigns")(while_waiting("fitting")(campaigns.command))
app.command("peers")(while_waiting("fitting")(peers.command))
app.command("models")(models.command)
app.command("check")(check.command)
