"""Counts of one training step: operators, floating-point operations, bytes, kept activations.

A dispatch mode of our own sees every operator of one real step, forward, backward and optimizer.
Operations come from torch's formulas, except where those are wrong in torch 2.13: LSTM on CPU
(counted as nothing) and the backward pass of grouped convolutions (groups forgotten).

    here    meaning
    flop    2 x multiply-adds of matrix products, convolutions, attention and recurrences [flop]
    bytes   operands read plus results written, views not counted [bytes]
    saved   storages kept from forward to backward, parameters not counted [bytes]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# Fragment of an operator's name -> its class, first match wins.
CLASSES: Final[tuple[tuple[str, str], ...]] = (
    ("attention", "attention"), ("rnn", "recurrent"), ("lstm", "recurrent"),
    ("convolution", "convolution"), ("mm", "matmul"), ("matmul", "matmul"),
    ("embedding", "embedding"), ("index", "embedding"), ("gather", "embedding"),
    ("norm", "normalisation"), ("sum", "reduction"), ("mean", "reduction"),
    ("softmax", "reduction"), ("nll", "reduction"), ("mse", "reduction"), ("pool", "reduction"),
    ("copy", "copy"), ("clone", "copy"), ("cat", "copy"), ("stack", "copy"), ("split", "copy"),
)  # fmt: skip


def operator_class(name: str) -> str:
    """Return the class of an operator by its name, ``"elementwise"`` where nothing else fits."""
    return next((kind for part, kind in CLASSES if part in name), "elementwise")


class StepCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what passes through; set ``phase`` before each part of the step."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.counts: dict[tuple[str, str], list[float]] = {}
        self.saved: dict[int, int] = {}
        self._parameters = {p.untyped_storage().data_ptr() for p in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not _is_view(func):
            name = func._schema.name.removeprefix("aten::")
            key = (self.phase, operator_class(name))
            entry = self.counts.setdefault(key, [0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += _flop(func, args, kwargs, out)
            entry[2] += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if _has_bytes(t))
        return out

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor saved for backward; the pack hook of ``saved_tensors_hooks``."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor


def count_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
) -> dict[str, Any]:
    """Run one real step and return its counts.

    Returns
    -------
    dict
        ``operators``, ``flop``, ``bytes``, ``saved_bytes``, ``parameters``, ``parameter_bytes``,
        ``optimizer_state_bytes``, and ``classes``: phase -> class -> [operators, flop, bytes].
    """
    parameters = list(model.parameters())
    count = StepCount(parameters)
    hooks = torch.autograd.graph.saved_tensors_hooks(count.keep, lambda tensor: tensor)
    with count:
        optimizer.zero_grad()
        with hooks:
            value = loss()
        count.phase = "backward"
        value.backward()  # type: ignore[no-untyped-call]
        count.phase = "optimizer"
        optimizer.step()
    classes: dict[str, dict[str, list[float]]] = {}
    for (phase, kind), entry in sorted(count.counts.items()):
        classes.setdefault(phase, {})[kind] = entry
    states = tree_leaves([optimizer.state[p] for p in parameters])
    return {
        "operators": sum(entry[0] for entry in count.counts.values()),
        "flop": sum(entry[1] for entry in count.counts.values()),
        "bytes": sum(entry[2] for entry in count.counts.values()),
        "saved_bytes": sum(count.saved.values()),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "optimizer_state_bytes": sum(s.nbytes for s in states if _has_bytes(s)),
        "classes": classes,
    }


def _has_bytes(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    own = _OWN_FORMULAS.get(func._schema.name)
    if own is not None:
        return own(args)
    formula = flop_registry.get(func.overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def _convolution_backward(args: Any) -> float:
    """2 x outputs x inputs per output, once for each gradient that is asked for."""
    gradient, _, weight, _, _, _, _, is_transposed, _, _, wanted = args[:11]
    spread = args[1].numel() if is_transposed else gradient.numel()
    return float(2 * spread * math.prod(weight.shape[1:]) * (wanted[0] + wanted[1]))


def _lstm_forward(args: Any) -> float:
    """2 x positions x 4 gates x hidden x (inputs + hidden); weights are (4 hidden, inputs)."""
    inputs, input_weight, hidden_weight = args[0], args[1], args[2]
    positions = math.prod(inputs.shape[:-1])
    return float(2 * positions * (input_weight.numel() + hidden_weight.numel()))


def _lstm_backward(args: Any) -> float:
    """Twice the forward pass: gradients of the inputs and of the weights."""
    return 2.0 * _lstm_forward(args)


_OWN_FORMULAS: Final[dict[str, Callable[[Any], float]]] = {
    "aten::convolution_backward": _convolution_backward,
    "aten::mkldnn_rnn_layer": _lstm_forward,
    "aten::mkldnn_rnn_layer_backward": _lstm_backward,
}
