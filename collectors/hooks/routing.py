"""The experts that tokens are sent to, seen at the routers of a mixture of experts.

A layer routes if one of its children is named after experts and holds several alike, and another
has a weight with a row for each of them: the router. How many experts a token uses stands in an
attribute of either (``top_k`` and its like). What the router returns are scores, of which the
largest are taken here too, or the chosen experts themselves.

Now and then, the more seldom the longer the recording, one forward pass is kept: the first
tokens in their order, in every layer. In between a router's hook returns at once. Nothing is
drawn at random, no gradient is made, and nothing that the script computes is changed.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import ProcessState


_TOPS = ("top_k", "num_experts_per_tok", "num_experts_per_token", "topk", "moe_top_k", "k")
_COUNTS = ("num_experts", "n_experts", "num_local_experts")
_MOST_TOKENS = 512
_MOST_NUMBERS = 16384  # in one pass, all layers together
_LEAST_NS = 1_000_000_000
_SHARE = 12  # of the time since the first pass, between two


class RouterHooks:
    """The routers of the trained model and the pass that is being kept."""

    def __init__(self, state: ProcessState) -> None:
        self.is_found = False
        self._state = state
        self._handles: list[Any] = []
        self._names: list[str] = []
        self._top = self._experts = 0
        self._kept: dict[str, Any] = {}
        self._is_wanted = self._is_training = False
        self._first_ns = self._due_ns = self._step = 0

    def find(self, roots: list[Any]) -> None:
        """Look for routers in the models that a traced step went through, once."""
        if self._handles:
            return
        found = [one for root in roots for one in routers_of(root)]
        # Layers of one kind: a model whose layers route unlike each other is left alone.
        if not found or len({(one["experts"], one["top"]) for one in found}) != 1:
            return
        self._experts, self._top = found[0]["experts"], found[0]["top"]
        self._names = [one["name"] for one in found]
        if len(set(self._names)) != len(found):
            return
        weights = {id(p): _size(p) for root in roots for p in root.parameters()}
        held = {id(p): _size(p) for one in found for p in one["weights"]}
        self._state.fact(
            "routers",
            layers=self._names,
            experts=self._experts,
            top=self._top,
            expert_bytes=sum(held.values()) // (len(found) * self._experts),
            dense_bytes=sum(size for key, size in weights.items() if key not in held),
        )
        for one in found:
            self._handles.append(one["router"].register_forward_hook(self._hook(one["name"])))
        self._first_ns = time.monotonic_ns()
        self.is_found = True

    def tick(self, now_ns: int) -> None:
        """Record the pass that was kept, and ask for another when it is time."""
        if self._is_wanted and len(self._kept) == len(self._names):
            kept, self._kept, self._is_wanted = self._kept, {}, False
            self._due_ns = now_ns + max(_LEAST_NS, (now_ns - self._first_ns) // _SHARE)
            # ``tolist`` waits for the device, which is why it is not done inside the pass.
            experts = [kept[name].flatten().tolist() for name in self._names]
            if len({len(layer) for layer in experts}) == 1:
                self._state.fact(
                    "routes", step=self._step, training=self._is_training, experts=experts
                )
        elif not self._is_wanted and now_ns >= self._due_ns:
            self._kept, self._is_wanted = {}, True

    def remove(self) -> None:
        """Take the hooks out."""
        self.is_found = self._is_wanted = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Any:
        def routed(module: Any, args: Any, output: Any) -> None:
            if self._is_wanted and name not in self._kept:
                try:
                    self._keep(name, module, output)
                except Exception as error:
                    self._is_wanted, self._due_ns = False, 1 << 62
                    self._state.failed("routing", error)

        return routed

    def _keep(self, name: str, module: Any, output: Any) -> None:
        # A pass begins with the first layer: what is asked for in the middle of one waits.
        if self._state.deep is not None or (not self._kept and name != self._names[0]):
            return
        if not self._kept:
            self._step = self._state.steps
        import torch

        with torch.no_grad():
            chosen = _chosen(output, self._experts, self._top)
            if chosen is None:
                raise ValueError("a router returns neither scores nor experts")
            most = min(_MOST_TOKENS, _MOST_NUMBERS // (len(self._names) * self._top))
            self._kept[name] = chosen[: max(most, 1)].clone()
        self._is_training = bool(module.training)


def routers_of(root: Any) -> list[dict[str, Any]]:
    """Return the routers in a model, in the order in which they are made."""
    found = []
    for name, module in root.named_modules():
        children = dict(module.named_children())
        for held_name, held in children.items():
            if "expert" not in held_name.lower():
                continue
            experts = _experts_in(held)
            for child_name, child in children.items():
                weight = getattr(child, "weight", None)
                rows = tuple(getattr(weight, "shape", ()))
                if child is held or experts < 2 or len(rows) != 2 or rows[0] != experts:
                    continue
                top = _number(_TOPS, module, child, held)
                if 1 <= top < experts:
                    found.append({
                        "name": (name + "." if name else "") + child_name, "router": child,
                        "experts": experts, "top": top, "weights": list(held.parameters()),
                    })  # fmt: skip
    return found


def _experts_in(held: Any) -> int:
    children = list(held.children())
    if len(children) > 1 and len({type(one) for one in children}) == 1:
        return len(children)
    leading = {int(p.shape[0]) for p in held.parameters(recurse=False) if p.dim() == 3}
    if len(leading) == 1:  # all experts' matrices in one tensor
        return leading.pop()
    return _number(_COUNTS, held)


def _number(names: tuple[str, ...], *modules: Any) -> int:
    for module in modules:
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return 0


def _chosen(output: Any, experts: int, top: int) -> Any:
    """Return the experts of each token, best first; None if that cannot be told."""
    parts = output if isinstance(output, (tuple, list)) else (output,)
    tensors = [one for one in parts if hasattr(one, "dim") and one.dim() > 1]
    for one in tensors:
        if not one.is_floating_point() and one.shape[-1] == top:
            return one.reshape(-1, top)
    for one in tensors:
        if one.is_floating_point() and one.shape[-1] == experts:
            return one.detach().reshape(-1, experts).topk(top, dim=-1).indices
    return None


def _size(parameter: Any) -> int:
    return int(parameter.numel() * parameter.element_size())
