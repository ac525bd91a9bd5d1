"""What a user imports: ``import predictor``. Nothing is defined here."""

from typing import TYPE_CHECKING

from advisor import __all__, __dir__, __getattr__  # noqa: F401 - names load when they are used

if TYPE_CHECKING:
    from advisor import *  # noqa: F403
