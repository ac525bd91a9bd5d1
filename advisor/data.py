"""Places of the packaged data and of the laboratory: in a wheel, an install, a checkout."""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from advisor.collectors.atomic import data_folder
from advisor.errors import UsageError

LABORATORY_HINT: Final = 'pip install "cloud-config-advisor[lab]"'


@cache
def root(folder: str) -> Path:
    """Return the path of a data folder, ``"datasets"`` or ``"trained_models"``.

    A clone without symbolic links (Windows) keeps the folders beside the package.
    """
    package = Path(__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


MODELS: Final = "ADVISOR_MODELS"


def models_place() -> str:
    """Return where models that the user fitted lie: ``$XDG_DATA_HOME/advisor/models``.

    ``ADVISOR_MODELS`` names another folder, or a team's URL.
    """
    return os.environ.get(MODELS) or str(user_data() / "models")


def own_models() -> Path:
    """Return the folder of models that the user fitted; a URL's are copied once a process."""
    place = models_place()
    return _brought(place) if "://" in place else Path(place)


@cache
def _brought(url: str) -> Path:
    from advisor.collectors.derive import pull_models

    return pull_models(url)


def own_runs_file(models: Path) -> Path:
    """Return where a user's models hold what the own runs taught."""
    return models / "own" / "residuals.json"


def writable_models() -> Path:
    """Return ``own_models`` as a folder to write to.

    Raises UsageError where they are a team's: that is only read.
    """
    if "://" in os.environ.get(MODELS, ""):
        raise UsageError(
            f"{MODELS} is an address, which is only read",
            hint="write to a folder with --out, then copy the folder there",
        )
    return own_models()


def model(name: str) -> Path:
    """Return the folder of a model's constants: the user's own fit, else what ships.

    ``advisor train`` makes the user's own where fetched measurements are there to be fitted too.
    """
    own = own_models() / name
    return own if (own / "parameters.json").is_file() else root("trained_models") / name


def user_data() -> Path:
    """Return the user's folder of data: ``$XDG_DATA_HOME/advisor``.

    ``measurements/`` inside holds what ``advisor data fetch`` brought.
    """
    return data_folder()


def shared() -> Path | None:
    """Return the mirror of public measurements that ``ADVISOR_SHARED`` names, or None.

    It is read for what neither ships nor was fetched. Nothing beside the checkout is looked for:
    a developer's clone prints what a bare one does.
    """
    named = os.environ.get("ADVISOR_SHARED")
    return Path(named) if named and (Path(named) / "data").is_dir() else None


def measurements(folder: Path | None = None) -> Path:
    """Return the folder of measurements that a command reads: the one named, or the packaged.

    Raises UsageError if the folder that was named is not there.
    """
    if folder is None:
        return root("datasets")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="name another with --data")
    return folder


def laboratory(module: str) -> ModuleType:
    """Return a module of the laboratory, which who only installed the product does not have.

    Raises UsageError that says what to install where it is not there.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UsageError(
            "this needs the laboratory, which is not installed", hint=LABORATORY_HINT
        ) from error


VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def use_one() -> None:
    """Ask the libraries of linear algebra for one thread, unless the user asked for a number.

    Where problems are many and small their threads wait for each other longer than they compute
    (``validate gpu`` on two busy cores: 58 s of CPU for what one thread does in 5, 2026-11-22),
    and a sum in another order changes last digits. They look at the environment when loaded.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
