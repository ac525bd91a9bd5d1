"""The tensors that ranks exchange, in pieces and in an order that all of them agree on."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's own default


def unpack(flat: Any, tensors: list[Any]) -> None:
    """Copy what was exchanged in one piece back into the tensors that it was made of."""
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def buckets(tensors: list[Any]) -> list[list[Any]]:
    """Return the tensors in groups of one type and device, each of some 25 MiB."""
    groups: dict[Any, list[list[Any]]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        size = tensor.numel() * tensor.element_size()
        its = groups.setdefault(kind, [[]])
        if its[-1] and sizes.get(kind, 0) + size > _BUCKET_BYTES:
            its.append([])
            sizes[kind] = 0
        its[-1].append(tensor)
        sizes[kind] = sizes.get(kind, 0) + size
    return [bucket for its in groups.values() for bucket in its]


def buffers_beside(parameters: list[Any]) -> list[Any]:
    """Return the floating-point buffers of the modules that hold any of the parameters.

    In an order that all ranks agree on: by the innermost module's parameters, then by name.
    """
    import gc

    import torch

    place = {id(one): number for number, one in enumerate(parameters)}
    found: dict[int, tuple[Any, Any]] = {}
    for module in gc.get_objects():
        if not issubclass(type(module), torch.nn.Module):  # asks no object for its class
            continue
        places = [place[id(one)] for one in module.parameters() if id(one) in place]
        for name, buffer in module.named_buffers() if places else ():
            if buffer.is_floating_point():
                key = len(places), min(places), len(name), name
                found[id(buffer)] = min(
                    found.get(id(buffer), (key, buffer)), (key, buffer), key=_first
                )
    return [buffer for _, buffer in sorted(found.values(), key=_first)]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]
