"""One thread for the libraries of linear algebra, where problems are many and small.

Their threads then wait for each other longer than they compute (``validate gpu`` on two busy
cores: 58 s of CPU for what one thread does in 5, 2026-11-22), and a sum in another order changes
last digits. The libraries look at the environment once, when they are loaded.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def use_one() -> None:
    """Ask for one thread, unless the user asked for a number of them."""
    if not any(name in os.environ for name in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
