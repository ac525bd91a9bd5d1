"""What a user imports: ``import predictor``. Nothing is defined here."""

from typing import TYPE_CHECKING

import advisor

if TYPE_CHECKING:
    from advisor import *  # noqa: F403
else:  # names load when they are used
    __all__, __dir__, __getattr__ = advisor.__all__, advisor.__dir__, advisor.__getattr__
