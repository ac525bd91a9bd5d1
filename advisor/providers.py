"""Providers and their bills: a row of ``providers.csv`` each, or what a package's class says.

What an adapter of another package (``docs/adding_a_provider.md``) states beside its prices is kept
beside the updated catalogue when it is read, so that no verb has to load the package.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor import data
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError
from advisor.planners.core import HOUR_S

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_BETWEEN: Final = "; "
SHORTEST_BILL_H: Final = 60 / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider, beside its prices."""

    provider: str  # as ``--cloud`` takes it
    title: str = ""  # what people call it
    # bill_step_s, bill_step_accelerated_s: a bill is a whole multiple of this, for machines
    # without accelerators and with; 0: by the second, from a minute on [s]
    bill_step_s: float = 0.0
    bill_step_accelerated_s: float = 0.0
    # targets of ``advisor export`` that rent from it, beside those of ``launchers.csv``
    exports: tuple[str, ...] = ()
    spot_label: str = ""  # NAME=VALUE of its managed Kubernetes' spot nodes; empty: none known
    skypilot_catalog: str = ""  # its name in SkyPilot's catalogue, where its prices are from there
    bill_source: str = ""

    def __post_init__(self) -> None:
        if not 0 <= min(self.bill_step_s, self.bill_step_accelerated_s) < math.inf:
            raise ValueError("a step of bills is below 0")


def _made(cells: Mapping[str, Any], where: str) -> Provider:
    """Return a provider of a row's cells, or of a class's attributes.

    Raises CatalogueError if one of them is not what it should be.
    """
    known = {name: cells[name] for f in fields(Provider) if (name := f.name) in cells}
    try:
        for name in ("bill_step_s", "bill_step_accelerated_s"):
            known[name] = float(known.get(name) or 0.0)
        exports = known.get("exports", ())
        if isinstance(exports, str):
            exports = [one for one in exports.split(_BETWEEN) if one]
        return Provider(**known | {"exports": tuple(exports)})
    except (TypeError, ValueError) as error:
        raise CatalogueError(
            f"{where}: the provider {known.get('provider', '')!r} is misdescribed: {error}",
            hint="a step of bills is in seconds; exports is a list of names",
        ) from error


def providers() -> Mapping[str, Provider]:
    """Return all providers by the names that ``--cloud`` takes.

    Raises CatalogueError if the table cannot be read.
    """
    own = _own_file()
    changed = own.stat().st_mtime_ns if own.is_file() else 0
    return _read(data.root("datasets") / "catalogue" / "providers.csv", own, changed)


def provider_of(name: str) -> Provider:
    """Return a provider; of one that no row describes, only its name is known."""
    return providers().get(name) or Provider(provider=name, title=name)


def launcher_of(target: str, provider: str) -> Mapping[str, str] | None:
    """Return how a target rents from a provider; None where nobody says that it does.

    ``cloud``: what the target calls the provider; ``type_prefix``: of its names of types;
    ``most_machines``: of a job, as text; empty: any number.
    """
    return _launchers().get((provider, target)) or (
        {"cloud": provider, "type_prefix": "", "most_machines": ""}
        if target in provider_of(provider).exports
        else None
    )


def launched_by(provider: str, machines: int = 1) -> tuple[str, ...]:
    """Return the targets that rent so many machines together from a provider.

    >>> launched_by("verda"), launched_by("verda", 2), launched_by("hyperstack")
    (('skypilot', 'dstack'), (), ())
    """
    named = [target for owner, target in _launchers() if owner == provider]
    rows = {one: launcher_of(one, provider) for one in (*named, *provider_of(provider).exports)}
    return tuple(
        one
        for one, row in rows.items()
        if row and machines <= float(row["most_machines"] or "inf")
    )


@cache
def _launchers() -> Mapping[tuple[str, str], Mapping[str, str]]:
    path = data.root("datasets") / "catalogue" / "launchers.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["provider"], row["launcher"]): row for row in bounded.csv_tables(file)}


def keep(adapter: Any) -> None:
    """Keep what an adapter's class says of its provider, if no row that ships does.

    Raises CatalogueError if it is not what it should be.
    """
    if adapter.name in _rows(data.root("datasets") / "catalogue" / "providers.csv"):
        return
    stated = {f.name: getattr(adapter, f.name, f.default) for f in fields(Provider)[1:]}
    made = _made({**stated, "provider": adapter.name}, type(adapter).__name__)
    out = io.StringIO()
    writer = csv.DictWriter(out, [f.name for f in fields(Provider)], lineterminator="\n")
    writer.writeheader()
    for one in (_rows(_own_file()) | {made.provider: made}).values():
        writer.writerow(asdict(one) | {"exports": _BETWEEN.join(one.exports)})
    atomic.write_text(_own_file(), out.getvalue())


def bills(provider: NDArray[np.str_], accelerators: Floats) -> tuple[Floats, Floats]:
    """Return the shortest bill and the step of bills of machines with so many accelerators [h]."""
    import numpy as np

    step = np.zeros(len(provider))
    for name, one in providers().items():
        if one.bill_step_s or one.bill_step_accelerated_s:
            own = np.asarray(provider == name)
            has = accelerators[own] > 0
            step[own] = np.where(has, one.bill_step_accelerated_s, one.bill_step_s) / HOUR_S
    return np.maximum(step, SHORTEST_BILL_H), step


def charged_h(hours: Floats, shortest_h: Floats | float, step_h: Floats | float) -> Floats:
    """Return the hours that a bill holds for machines rented so long [h].

    ``shortest_h``, ``step_h``: as of ``bills``; broadcast.

    Examples
    --------
    >>> import numpy as np
    >>> charged_h(np.array([0.001, 0.51, 1.0]), 0.5, 0.5).tolist()
    [0.5, 1.0, 1.0]
    """
    import numpy as np

    charged = np.maximum(hours, shortest_h)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.ceil(charged / step_h - 1e-9) * step_h
    return np.asarray(np.where(np.asarray(step_h) > 0, whole, charged))


def _own_file() -> Path:
    return atomic.cache_folder() / "catalogue" / "providers.csv"


@cache
def _read(shipped: Path, own: Path, changed: int) -> Mapping[str, Provider]:
    return (_rows(own) if changed else {}) | _rows(shipped)


def _rows(path: Path) -> dict[str, Provider]:
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            made = [_made(row, path.name) for row in bounded.csv_tables(file)]
        return {one.provider: one for one in made}
    except (OSError, ValueError) as error:
        raise CatalogueError(
            f"cannot read {path}: {error}", hint="get the file again, or delete it"
        ) from error
