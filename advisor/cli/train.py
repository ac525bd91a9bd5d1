"""``advisor train``: fit models again, one thing fitted a verb.

Without a verb it fits the learned predictors: ``advisor train``, or with their options. The fits
of the constants that ship are the laboratory's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup

from advisor.ask import Printed, argument, option
from advisor.cli.options import add, print_json
from advisor.cli.terminal import while_waiting
from advisor.data import laboratory
from advisor.train import TrainModels, day_of, day_option, out_option

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
# Fits of the constants that ship, which the laboratory makes: what their verbs say.
_FITS: Final = {
    "device-model": "Fit the device model on published measurements.",
    "scaling": "Fit the constants of data-parallel scaling.",
    "memory": "Fit the constants of the memory model from measurements.",
    "layout-model": "Fit the constants of the layout model on published runs.",
    "campaigns": "Fit what a whole training run adds to its steps.",
    "peers": "Fit the model of peers that share a batch across sites.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConstants:
    """One of ``_FITS``."""

    verb: ClassVar[str] = ""
    # fmt: off
    given: Path | None = option("Measurements laid out like shared/data.", flags="--data")
    out: Path | None = out_option()
    day: str | None = day_option()
    # fmt: on

    @while_waiting("fitting")
    def __call__(self) -> None:
        laboratory("advisor.lab.fit.verbs").fit(self.verb, self.given, self.out, self.day)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCampaigns(TrainConstants):
    """A fit of a table."""

    # fmt: off
    given: Path | None = option("Table of published runs (default: packaged).", flags="--data")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCheck(Printed):
    """Refit the shipped models by the commands on their cards."""

    # fmt: off
    names: list[str] | None = argument("Folders of trained_models, or paths of such folders "
        "(default: all).")
    quick: bool = option("Check only the models that are fitted in seconds.", default=False)
    replace: bool = option("Replace the folder with the new fit.", default=False)
    day: str | None = option("With --replace: day of the fits (default: today).")
    # fmt: on

    def __call__(self) -> None:
        again = laboratory("advisor.lab.fit.check")
        found = []
        for name in self.names or again.possible(is_quick=self.quick):
            folder = again.folder_of(name)
            if not self.as_json:
                typer.echo(f"fitting {folder.name} again ...", err=True)
            checked = again.check(folder, day_of(self.day) if self.replace else None)
            found.append(checked)
            if not self.as_json:
                typer.echo(checked.text(is_replaced=self.replace))
        if self.as_json:
            record = {"schema_version": 1, "models": [checked.to_record() for checked in found]}
            print_json(record)
        if not self.replace and any(checked.differences for checked in found):
            raise typer.Exit(1)


for _verb, _about in _FITS.items():
    _kind = TrainCampaigns if _verb == "campaigns" else TrainConstants
    add(app, _verb, type(_verb, (_kind,), {"verb": _verb, "__doc__": _about}))
add(app, "models", TrainModels)
add(app, "check", TrainCheck)
