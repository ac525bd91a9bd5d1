"""The launcher's part of a command line, and variables for what a recording does not keep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from advisor.collectors.hooks.redaction import HASHED

# Host and port of the rendezvous: the user's first machine.
_RENDEZVOUS = "--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29500"


def torchrun(nodes: int, per_node: int, *, environment: Mapping[str, str] | None = None) -> str:
    """Return the launcher's part of a command line, with variables that it needs.

    >>> torchrun(1, 4)
    'torchrun --standalone --nproc-per-node 4'
    >>> torchrun(1, 2, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    'CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --standalone --nproc-per-node 2'
    """
    variables = "".join(f"{name}={value} " for name, value in (environment or {}).items())
    if nodes == 1:
        return f"{variables}torchrun --standalone --nproc-per-node {per_node}"
    return f"{variables}torchrun --nnodes {nodes} --nproc-per-node {per_node} {_RENDEZVOUS}"


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of a shell that stand for values of which the recording has a hash.

    >>> variables_of(["train.py", "--data-dir", "hidden:0123456789", "--id=hidden:abcdefabcd"])
    {'hidden:0123456789': 'ARG_DATA_DIR', 'hidden:abcdefabcd': 'ARG_ID'}
    """
    found: dict[str, str] = {}
    name = ""
    for number, word in enumerate(words):
        name = word if word.startswith("-") else name
        option = word.partition("=")[0] if "=" in word else name
        said = re.sub(r"\W+", "_", HASHED.sub("", option).strip("-")).upper() or str(number)
        for one in HASHED.findall(word):
            taken = f"ARG_{said}" in found.values() and one not in found
            found.setdefault(one, f"ARG_{said}_{number}" if taken else f"ARG_{said}")
    return found


def with_variables(text: str, words: Sequence[str]) -> str:
    """Return a command that takes from variables what the recording has only a hash of."""
    for value, variable in variables_of(words).items():
        text = text.replace(value, f'"${{{variable}:?not recorded}}"')
    return text
