"""The sources that ``advisor catalogue update`` knows: built in, and from other packages.

A package offers an adapter under the entry point group ``advisor.catalogue_adapters``: the name is
the provider, the object a callable without arguments that returns an ``Adapter``. See
``docs/adding_a_provider.md`` for a worked example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from advisor.catalogue.providers.aws import AWS
from advisor.catalogue.providers.azure import Azure
from advisor.catalogue.providers.base import Adapter
from advisor.catalogue.providers.gcosts import GCosts
from advisor.catalogue.providers.skypilot import SkyPilot
from advisor.errors import CatalogueError, UsageError
from advisor.providers import providers

GROUP: Final = "advisor.catalogue_adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A named adapter that is made when it is needed: a broken one harms only itself."""

    name: str
    make: Callable[[], Adapter]


def sources(names: Iterable[str] = ()) -> tuple[Source, ...]:
    """Return the adapters with these names, or all, in the order in which they run.

    Raises UsageError if there is no adapter of a name.
    """
    known: dict[str, Callable[[], Adapter]] = {"aws": AWS, "azure": Azure, "gcp": GCosts}
    known |= {
        name: partial(SkyPilot, name) for name, one in providers().items() if one.skypilot_catalog
    }
    known |= {entry.name: partial(_loaded, entry) for entry in entry_points(group=GROUP)}
    wanted = tuple(names) or tuple(known)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"no source is called {name!r}", hint=f"one of: {', '.join(sorted(known))}"
            )
    return tuple(Source(name=name, make=known[name]) for name in wanted)


def _loaded(entry: EntryPoint) -> Adapter:
    try:
        made = entry.load()()
    except Exception as error:
        raise CatalogueError(
            f"the adapter {entry.name!r} ({entry.value}) cannot be loaded: {error}",
            hint="ask the authors of the package that offers it, or remove the package",
        ) from error
    if not isinstance(made, Adapter):
        raise CatalogueError(
            f"{entry.value} gives no adapter: it lacks fetch, owns, parse, name, source, licence "
            "or replaces",
            hint="see docs/adding_a_provider.md",
        )
    return made
