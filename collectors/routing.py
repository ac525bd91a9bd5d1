"""Experts that the tokens of a mixture were sent to, as the hooks saw it (``hooks.routing``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedPass:
    """The first tokens of one forward pass.

    Attributes
    ----------
    is_training : bool
        Whether the routers were in training mode, in which some add noise.
    experts : tuple of tuple of int
        By layer, the experts of one token after the other.
    """

    step: int
    is_training: bool
    experts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The layers of a model that route, and where tokens went.

    Attributes
    ----------
    experts, top : int
        Experts of a layer, and how many each token uses.
    expert_bytes, dense_bytes : int
        Weights of one expert, and of all that is no expert. [bytes]
    passes : tuple of RoutedPass
        In time; empty if none was seen whole.
    """

    layers: tuple[str, ...]
    experts: int
    top: int
    expert_bytes: int
    dense_bytes: int
    passes: tuple[RoutedPass, ...]


def routing_of(routers: Mapping[str, Any], routes: Sequence[Mapping[str, Any]]) -> Routing | None:
    """Return what the facts say; None where no layer routes."""
    if not routers:
        return None
    layers = tuple(str(name) for name in routers["layers"])
    experts, top = int(routers["experts"]), int(routers["top"])
    passes = []
    for route in routes:
        seen = tuple(tuple(int(one) for one in layer) for layer in route["experts"])
        sizes = {len(layer) for layer in seen}
        is_whole = len(seen) == len(layers) and len(sizes) == 1 and not max(sizes) % top
        if not is_whole or not all(0 <= one < experts for layer in seen for one in layer):
            raise ValueError(f"routes of {len(seen)} layers to {experts} experts")
        passes.append(
            RoutedPass(step=int(route["step"]), is_training=bool(route["training"]), experts=seen)
        )
    return Routing(
        layers=layers,
        experts=experts,
        top=top,
        expert_bytes=int(routers["expert_bytes"]),
        dense_bytes=int(routers["dense_bytes"]),
        passes=tuple(passes),
    )
