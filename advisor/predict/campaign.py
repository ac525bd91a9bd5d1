"""The fitted law of what a whole run adds to its steps.

``trained_models/campaign/parameters.json`` holds the law fitted on every published run (``law``)
and the laws fitted without each family in turn (``folds``), as ``advisor train campaigns`` wrote
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.planners.goodput.campaign import CampaignLaw

SCHEMA_VERSION: Final = 1
_HINT: Final = "run `advisor train campaigns`, or install the package again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignModel:
    """The law, and how it came about."""

    version: str
    law: CampaignLaw  # fitted on all runs
    folds: Mapping[str, CampaignLaw]  # fitted without the named family


def path() -> Path:
    """Return where the packaged constants lie."""
    return data.root("trained_models") / "campaign" / "parameters.json"


@cache
def load(file: Path | None = None) -> CampaignModel:
    """Read the packaged constants, or others of the same form.

    Raises ModelError if the file is missing, not JSON, of another schema or lacks a constant.
    """
    file = file or path()
    try:
        record = bounded.read_json(file)
        found = record["schema_version"]
        bounded.check_numbers({"law": record["law"], "folds": record["folds"]})
        model = CampaignModel(
            version=record["version"],
            law=CampaignLaw(**record["law"]),
            folds={name: CampaignLaw(**law) for name, law in record["folds"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read the constants of whole runs {file}: {error}", hint=_HINT
        ) from error
    if found != SCHEMA_VERSION:
        raise ModelError(f"{file} has schema version {found}, not {SCHEMA_VERSION}", hint=_HINT)
    return model


def record(model: CampaignModel) -> dict[str, Any]:
    """Return the JSON form that ``load`` reads."""

    def rounded(law: CampaignLaw) -> dict[str, float]:
        return {name: float(f"{value:.5g}") for name, value in asdict(law).items()}

    return {
        "schema_version": SCHEMA_VERSION,
        "version": model.version,
        "law": rounded(model.law),
        "folds": {name: rounded(law) for name, law in sorted(model.folds.items())},
    }
