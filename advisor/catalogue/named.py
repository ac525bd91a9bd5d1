"""Configurations as users write them."""

from __future__ import annotations

import re
from typing import Final

_COUNTED: Final = re.compile(r"(?P<count>\d+)\s*[x×]\s*(?P<name>\S+)")


def named(configuration: str | tuple[str, int]) -> tuple[str, int]:
    """Return type and number of machines of a configuration in words.

    Examples
    --------
    >>> named("g5.xlarge"), named("2 x g5.xlarge"), named(("g5.xlarge", 4))
    (('g5.xlarge', 1), ('g5.xlarge', 2), ('g5.xlarge', 4))
    """
    if not isinstance(configuration, str):
        name, count = configuration
        return str(name), int(count)
    found = _COUNTED.fullmatch(configuration.strip())
    return (found["name"], int(found["count"])) if found else (configuration.strip(), 1)
