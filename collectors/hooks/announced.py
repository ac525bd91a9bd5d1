"""Fast kernels that a script says it does without: what runs in their place is what is recorded.

Libraries say so in a warning, or in a log record, when they look for a package in vain and go on
with code of their own: a scan over time steps, attention written out. Only names of the table
below are noted, nothing of the text.
"""

from __future__ import annotations

import re

from .frameworks.rounds import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session

# Package as it is installed -> how announcements call it.
_KERNELS = (
    ("mamba-ssm", r"mamba[-_]ssm|state-spaces/mamba|selective_s(can|tate)"),
    ("causal-conv1d", r"causal[-_]conv1d"),
    ("flash-linear-attention", r"flash[-_ ]linear[-_ ]attention|\bfla\b"),
    ("flash-attn", r"flash[-_ ]?attn\b|flash[-_ ]?attention(?![-_ ]*linear)"),
    ("xformers", r"xformers"),
    ("apex", r"\bapex\b"),
    ("liger-kernel", r"liger[-_ ]kernel"),
    ("deep-gemm", r"deep[-_ ]?gemm"),
)
_GOES_WITHOUT = re.compile(
    r"fall(s|ing|en)?[- ]?back|fast path is not|(not|isn't) (be )?(installed|available|found)"
    r"|unavailable|no module named|could not (be )?import",
    re.I,
)
_LONGEST = 2000


def missing(text: str) -> list[str]:
    """Return the packages that an announcement says it goes without.

    >>> missing("The fast path is not available because one of `(causal_conv1d_fn)` is None.")
    ['causal-conv1d']
    >>> missing("flash_attn 2.8.0 is used"), missing("file not found")
    ([], [])
    """
    text = text[:_LONGEST]
    if not _GOES_WITHOUT.search(text):
        return []
    return [name for name, called in _KERNELS if re.search(called, text, re.I)]


class Announced:
    """Notes each package once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noted: set[str] = set()

    def hear(self, text: Any, *values: Any) -> None:
        """Note what an announcement says is missing; ``values`` are put into its text."""
        with self._session.guarded("announcement"):
            said = [str(text), *(one for one in values if isinstance(one, str))]
            for name in missing(" ".join(said)):
                if name not in self._noted:
                    self._noted.add(name)
                    self._session.fact("fallback", package=name)

    def in_log(self, module: Any) -> None:
        """Listen to warnings that are logged, those that nobody wants to see too."""
        original = module.Logger.warning

        def warning(logger: Any, msg: Any, *args: Any, **named: Any) -> None:
            self.hear(msg, *args)
            named["stacklevel"] = named.get("stacklevel", 1) + 1  # the caller's line, not this
            original(logger, msg, *args, **named)

        replace(self._session, module.Logger, "warning", warning)

    def in_warnings(self, module: Any) -> None:
        """Listen to warnings that are shown."""
        original = module.showwarning

        def showwarning(message: Any, *args: Any, **named: Any) -> None:
            self.hear(message)
            original(message, *args, **named)

        replace(self._session, module, "showwarning", showwarning)
