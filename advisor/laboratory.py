"""The laboratory beside the product: what fits, scores and collects, where it is installed."""

from __future__ import annotations

import importlib
from types import ModuleType

from advisor.errors import UsageError


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
            "this needs the laboratory, which is not installed",
            hint="pip install 'cloud-config-advisor[lab]'",
        ) from error
