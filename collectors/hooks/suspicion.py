"""A first, cheap look for secrets in a text.

Apart from ``redaction``, whose patterns take some milliseconds to compile: most processes that are
hooked never need them. Python 3.8, standard library only.
"""

from __future__ import annotations

import re

# What can be a secret at all has one of these in it.
_SUSPICIOUS = re.compile(
    r"pass|pwd|token|secret|key|cred|auth|cookie|otp|bearer|basic|sig|jwt|pat|session|@|://|"
    r"A[KSIRG][IDOP]A|AIza|hf_|gh[pousr]_|sk-|xox|eyJ|glpat|pypi-|npm_|dop_|ya29|PRIVATE",
    re.IGNORECASE,
)


def may_hold_secrets(text: str) -> bool:
    """Whether a text may have a secret in it."""
    return _SUSPICIOUS.search(text) is not None
