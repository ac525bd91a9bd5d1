"""Values that a shell offers behind an option: words of a choice, or names that are known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from advisor.errors import AdvisorError


def offered(name: str, metavar: str, incomplete: str) -> list[str]:
    """Return what may stand behind an option, as far as it was typed, in any case.

    ``name``: of the option's entry; ``metavar``: of its kind, ``a|b`` of a choice. Of a list the
    last name is completed. Nothing where what is known cannot be read.

    >>> offered("precision", "bf16|fp16|fp8", "f")
    ['fp16', 'fp8']
    """
    before, comma, last = incomplete.rpartition(",") if name in _LISTS else ("", "", incomplete)
    try:
        known = _KNOWN[name](last) if name in _KNOWN else metavar.split("|")
    except (AdvisorError, OSError):
        return []
    length = len(last)
    begun = dict.fromkeys(one for one in known if one[:length].lower() == last.lower())
    return [f"{before}{comma}{last}{one[length:]}" for one in begun]


def _models(begun: str) -> Iterable[str]:
    from advisor.jobs import names_from

    return names_from(begun)


def _of_types(column: str) -> list[str]:
    """Return what a column of all types on offer holds."""
    from advisor.catalogue import Catalogue

    return sorted(set(getattr(Catalogue.load().types, column).tolist()) - {""})


def _accelerators(_: str) -> Iterable[str]:
    """Return the accelerators of all types on offer, families first."""
    names = _of_types("accelerator")
    return [*(name.partition("-")[0] for name in names), *names]


def _regions(_: str) -> Iterable[str]:
    from advisor.catalogue import Catalogue

    return sorted(set(Catalogue.load().prices.regions))


def _stacks(_: str) -> Iterable[str]:
    from advisor.planners.core import STACKS

    return STACKS


def _targets(_: str) -> Iterable[str]:
    from advisor.export import TARGETS

    return TARGETS


def _runs(_: str) -> Iterable[str]:
    from advisor.collectors.derive import list_runs

    return [run.name for run in reversed(list_runs())]


_KNOWN: Final[Mapping[str, Callable[[str], Iterable[str]]]] = {
    "model": _models, "gpus": _accelerators, "gpu": _accelerators,
    "cloud": lambda _: _of_types("provider"), "region": _regions, "stack": _stacks,
    "to": _targets, "on": lambda _: ["here", *_of_types("name")], "run": _runs, "recorded": _runs,
}  # fmt: skip
_LISTS: Final = frozenset({"gpus", "cloud", "region"})
