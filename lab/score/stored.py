"""The stored figures: what every protocol gave on the measurements, on which day, and why.

``datasets/accuracy/PROTOCOL.json`` holds the record of ``advisor validate PROTOCOL --json`` with
where it comes from, on what ships; ``fetched/PROTOCOL.json``, with what ``advisor data fetch``
brings and constants fitted on that too; ``shipped/FOLDER``, constants as they ship;
``sampled/PROTOCOL``, some rows of one that takes minutes. The tables of the documentation, the
gate (``gate``) and ``recommend`` read these files; nobody else writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import atomic, bounded
from advisor.errors import ModelError, UsageError
from advisor.lab.data import BY_NAME

SCHEMA_VERSION: Final = 1
DECIMALS: Final = 6
# Protocols of more than 100 s of CPU on a quiet machine: of those that ship only some rows are
# checked on every change (``score.SAMPLED``). They are named, for by seconds of a busy machine a
# protocol would drop out of the check unseen.
SLOW: Final = ("described", "gpu", "job", "minutes", "own", "scaling", "thesis")
_HINT: Final = "store it again: python -m advisor.lab.score.accuracy store PROTOCOL --reason TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The stored figures of one protocol: computed on a day (YYYY-MM-DD), for a reason.

    ``command`` gives them again in ``cpu_s`` on one thread [s]; ``inputs`` are the tables that
    were read, with the SHA-256 of their rows; ``record`` is that of ``Validation.to_record``.
    """

    protocol: str
    day: str
    reason: str
    command: str
    cpu_s: float
    inputs: Mapping[str, str]
    record: Mapping[str, Any]

    @property
    def is_quick(self) -> bool:
        """Whether it is checked on every change."""
        return self.protocol not in SLOW


def folder() -> Path:
    return data.root("datasets") / "accuracy"


def fetched() -> Path:
    """Return the folder of the second column: figures that need data or constants of one's own."""
    return folder() / "fetched"


def place_of(protocol: str, inputs: Mapping[str, str]) -> Path:
    """Return the folder of the figures that a run is of, by the tables that it read."""
    sets = [BY_NAME[s] for s in {name.partition("/")[0] for name in inputs} if s in BY_NAME]
    has_own = any(data.model(m).parent == data.own_models() for m in ("device_model", "scaling"))
    has_second = path(protocol, fetched()).exists()
    if not all(one.ships for one in sets) or (has_second and has_own):
        return fetched()
    return fetched() if has_second and not path(protocol).exists() else folder()


def path(protocol: str, within: Path | None = None) -> Path:
    return (within or folder()) / f"{protocol}.json"


def read(protocol: str, within: Path | None = None) -> Stored:
    """Read the stored figures of a protocol.

    Raises ModelError if there are none, or the file is not of this form.
    """
    file = path(protocol, within)
    try:
        return parsed(bounded.read_json(file))
    except FileNotFoundError as error:
        raise ModelError(
            f"no stored figures of {protocol}: {file} is missing", hint=_HINT
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read the stored figures {file}: {error}", hint=_HINT) from error


def parsed(record: Any) -> Stored:
    """Return what the JSON of a file says.

    Raises ValueError, KeyError, TypeError if it is not of this form.
    """
    if record["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {record['schema_version']}, not {SCHEMA_VERSION}")
    return Stored(
        **{name: record[name] for name in Stored.__slots__ if name != "cpu_s"},
        cpu_s=float(record["cpu_s"]),
    )


def read_all(within: Path | None = None) -> dict[str, Stored]:
    found = sorted((within or folder()).glob("*.json"))
    return {file.stem: read(file.stem, within) for file in found}


def read_held(kind: str) -> dict[str, Stored]:
    """Read what is ``shipped`` or ``sampled`` (``score.SHIPPED``, ``score.SAMPLED``)."""
    return {f"{kind}/{name}": one for name, one in read_all(folder() / kind).items()}


def text(stored: Stored) -> str:
    """Return the file's content: numbers to ``DECIMALS`` decimals, the record last.

    Raises UsageError if there is no reason.
    """
    if not stored.reason.strip():
        raise UsageError(
            "stored figures need a reason", hint="say with --reason what changed them"
        )
    fields = {name: _rounded(getattr(stored, name)) for name in Stored.__slots__}
    return json.dumps({"schema_version": SCHEMA_VERSION} | fields, indent=1) + "\n"


def write(stored: Stored, within: Path | None = None) -> Path:
    file = path(stored.protocol, within)
    atomic.write_text(file, text(stored))
    return file


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return round(value, DECIMALS) if isinstance(value, float) else value
