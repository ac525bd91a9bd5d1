"""The launcher's part of a command line."""

from __future__ import annotations

from collections.abc import Mapping

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
