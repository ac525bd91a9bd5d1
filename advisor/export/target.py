"""A target of ``advisor export``: what it writes, what it must be told, what it cannot say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from advisor.answer import Recorded
from advisor.errors import AdvisorError, UsageError
from advisor.export.launch import Launch
from advisor.export.pick import HERE, Pick
from advisor.providers import launched_by, providers


class NotExportableError(AdvisorError):
    """The target cannot rent or run the row that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Recorded):
    """What a tool takes, and how it is handed over."""

    target: str
    files: Mapping[str, str]  # text by name; the first is the one that ``run`` names
    run: str  # the command to type, in the folder of the files
    notes: tuple[str, ...] = ()  # what the format cannot say, and what is left to fill in

    def placed(self, paths: Mapping[str, Path]) -> Exported:
        """Return the export whose command names the files where they were written.

        ``paths``: by the files' own names. What a path in a command ends with is no such name.
        """
        run = self.run
        for name, path in paths.items():
            own = re.compile(rf"(?<![\w.-])(?<![\w.-]/){re.escape(name)}(?![\w./-])")
            run = own.sub(shlex.quote(str(path)).replace("\\", r"\\"), run)
        return replace(self, run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blank:
    """What only the user knows: an account's role, an image, a bucket.

    ``example``, of the form that the tool takes, stands there until it is given; empty: left out.
    """

    example: str
    help: str


# What every target takes: it holds of the job.
OF_THE_JOB: Final[Mapping[str, Blank]] = {
    "script": Blank(example="", help="your script with its arguments, as in a shell"),
    "framework": Blank(example="", help="trainer, for a script of Hugging Face's Trainer"),
}


def is_rented_from(target: str, provider: str, machines: int = 1) -> bool:
    """Whether a target rents so many machines together from a provider."""
    return target in launched_by(provider, machines)


Write = Callable[[Pick, Launch, Mapping[str, str]], Exported]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool that runs a recommendation."""

    name: str  # as ``--to`` takes it
    write: Write  # from pick, launch and the blanks' values to what is written
    # by their name in ``--set NAME=VALUE``
    blanks: Mapping[str, Blank] = field(default_factory=dict)
    rents: bool = False  # it rents the machines itself, of the providers that say so
    runs_here: bool = False  # the machine at hand will do
    # it spreads a described job's model itself: nothing is added to the script
    spreads: bool = False

    @property
    def providers(self) -> frozenset[str] | None:
        """Providers that it rents from; None: whoever owns the machines."""
        if not self.rents:
            return None
        return frozenset(one for one in providers() if is_rented_from(self.name, one))

    def check(self, pick: Pick) -> None:
        """Refuse machines that the target cannot rent."""
        here = pick.rented.provider == HERE
        if here and not self.runs_here:
            raise NotExportableError(
                f"the pick is this machine, which {self.name} does not rent",
                hint="name a row that is rented: add its number, 1 for the first",
            )
        if len(pick.configuration.parts) > 1:
            raise NotExportableError(
                f"row {pick.rank} mixes machine types, and {self.name} starts equal machines",
                hint="export another row, or recommend without --mixed",
            )
        known = self.providers
        unknown = {one.provider for one, _ in pick.configuration.parts} - (known or set())
        if known is not None and unknown and not here:
            raise NotExportableError(
                f"{self.name} does not rent from {', '.join(sorted(unknown))}",
                hint=f"rank its own clouds: --cloud {','.join(sorted(known))}",
            )
        rented = pick.rented.provider
        if known is not None and not here and not is_rented_from(self.name, rented, pick.nodes):
            raise NotExportableError(
                f"{self.name} rents one machine at a time from {rented}",
                hint="--max-nodes 1, or --to kubernetes once the machines are rented",
            )

    def filled(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return every blank's value: what was given, or its example.

        Raises UsageError if a name is none of the target's, or a value is not one line: not every
        format can quote a line's end. A script's words are quoted one by one.
        """
        known = {**self.blanks, **OF_THE_JOB}
        for name, value in given.items():
            if name not in known:
                raise UsageError(
                    f"{self.name} has no value {name!r} to set", hint=f"one of: {', '.join(known)}"
                )
            if name != "script" and not value.isprintable():
                raise UsageError(
                    f"--set {name}={value!r} holds the end of a line, or a sign that nobody sees",
                    hint="write one line of visible signs",
                )
        return {name: given.get(name, one.example) for name, one in known.items()}

    def unfilled(self, given: Mapping[str, str]) -> tuple[str, ...]:
        """Return a note for every blank that was left to its example."""
        return tuple(
            f"{one.help}: replace {one.example}, or give --set {name}=..."
            for name, one in self.blanks.items()
            if name not in given and one.example
        )
