"""Memory that operators touch: what belongs to the model, what to the batch, what is alive.

A tensor is a view of a storage; traffic is counted by tensor, ownership and life by storage.
*Fixed* storages (parameters, buffers, gradients, optimizer state, and what is computed from these
alone) do not grow with the batch.
"""

from __future__ import annotations

from bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any


# Of no storage do other ranks hold other parts.
WHOLE: Mapping[int, int] = {}


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in an operator's arguments or results, however nested."""
    if value is None or isinstance(value, (int, float, str, bool)):
        return
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def parts(tensor: Any) -> list[Any]:
    """Return the strided tensors that hold ``tensor``: itself, or a sparse one's pieces."""
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        return [tensor._indices(), tensor._values()]
    if layout in ("torch.sparse_csr", "torch.sparse_bsr"):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in ("torch.sparse_csc", "torch.sparse_bsc"):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if layout == "torch.strided" else []


def size_bytes(tensor: Any) -> int:
    """Return the bytes that reading ``tensor`` once moves; a broadcast dimension is free."""
    total = 0
    for part in parts(tensor):
        elements = 1
        for size, stride in zip(part.shape, part.stride()):
            elements *= int(size) if stride else 1
        total += elements * int(part.element_size())
    return total


def key_of(tensor: Any) -> int:
    """Return the identity of the storage behind a tensor; 0 where it has none."""
    try:
        pieces = parts(tensor)
        return int(pieces[-1].untyped_storage()._cdata) if pieces else 0
    except Exception:  # tensors without storage: fake, functional, wrapper subclasses
        return 0


class Storages:
    """The storages of one deep step: which belong to the model, and when each lived.

    Life is counted in *looks*: finding out who has died takes a look at everything alive, so
    there is one after every operator while that is little, and after every few when it is much.
    """

    # Looks are spaced so that an operator pays for at most this many storages, about 15 us.
    _PER_OPERATOR = 100

    def __init__(self) -> None:
        self.fixed: set[int] = set()
        # Key -> (weak reference, bytes, owner, first look). The reference keeps the address from
        # being used again within the step, so that a key names one storage; hence the dead are
        # kept too: (key, bytes, first look, look that found it dead, reference).
        self._living: dict[int, tuple[Any, int, int, int]] = {}
        self._dead: list[tuple[int, int, int, int, Any]] = []
        self._looks = 0
        self._operators = 0

    def add_model(self, tensors: Iterable[Any]) -> None:
        """Take in parameters, buffers, gradients and optimizer state."""
        for tensor in tensors:
            self.fixed.add(key_of(tensor))
            self.made(tensor, -1)

    def made(self, tensor: Any, owner: int) -> None:
        """Take in an operator's result; a view of a known storage changes nothing."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for part in parts(tensor):
            storage = part.untyped_storage()
            key = int(storage._cdata)
            if key not in self._living:
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._living[key] = reference, int(storage.nbytes()), owner, self._looks

    def operator_ended(self) -> None:
        """Look who is alive, if it is time."""
        self._operators += 1
        if self._operators * self._PER_OPERATOR >= len(self._living):
            self._operators = 0
            self._look()

    def _look(self) -> None:
        for key, (reference, size, _, born) in list(self._living.items()):
            if reference.expired():
                self._dead.append((key, size, born, self._looks, reference))
                del self._living[key]
        self._looks += 1

    def living(self) -> list[tuple[int, int, int]]:
        """Return (key, bytes, owner) of the storages alive now."""
        self._look()
        return [(key, size, owner) for key, (_, size, owner, _) in self._living.items()]

    def frontier(
        self, fixed: set[int], parts: Mapping[int, int] = WHOLE
    ) -> list[tuple[int, int, int]]:
        """Return the moments of the step that can be its peak for some size of the batch.

        What is left at the step's end (a loop's variables) lived in it from the step before, up to
        the moment at which it was made anew. ``parts``: storage -> ranks that hold the others.

        Returns
        -------
        list of (int, int, int)
            Bytes that are fixed, bytes that grow, and storages, of those moments at which
            fixed + r growing is the largest for some r >= 0; from the most fixed to the most
            growing.
        """
        changes = [[0, 0, 0] for _ in range(self._looks + 1)]
        lives = [(key, size, born, died) for key, size, born, died, _ in self._dead]
        lives += [(k, size, born, self._looks) for k, (_, size, _, born) in self._living.items()]
        for key, size, born, died in lives:
            size *= parts.get(key, 1)
            kind = 0 if key in fixed else 1
            changes[min(born, self._looks)][kind] += size
            changes[min(born, self._looks)][2] += 1
            changes[died][kind] -= size
            changes[died][2] -= 1
        for key, (_, size, _, born) in self._living.items():
            if key not in fixed and born:
                size *= parts.get(key, 1)
                changes[0][1] += size
                changes[0][2] += 1
                changes[min(born + 1, self._looks)][1] -= size
                changes[min(born + 1, self._looks)][2] -= 1
        moments = []
        now = [0, 0, 0]
        for change in changes:
            now = [before + added for before, added in zip(now, change)]
            moments.append((now[0], now[1], now[2]))
        return upper_hull(moments)


def upper_hull(points: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the points whose first two sizes are outermost in some positive direction."""
    hull: list[tuple[int, int, int]] = []
    for point in sorted(set(points), reverse=True):
        if hull and point[1] <= hull[-1][1]:
            continue  # neither more fixed nor more growing than one before
        while len(hull) > 1 and _is_inside(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_inside(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> bool:
    """Whether ``b`` lies on or below the line from ``a`` to ``c``."""
    return (b[1] - a[1]) * (a[0] - c[0]) <= (c[1] - a[1]) * (a[0] - b[0])


# The module that an operator belongs to, forward and backward.
#
# Forward, an operator belongs to the module entered last: a leaf's own operators and whatever
# its parents compute before they enter the next one (an activation, a residual sum), so that the
# layers add up to the step. Backward, the autograd node that runs was numbered when its forward
# operator ran, and the numbers at each module's entry say between which two entries that was.


# What an operator outside of every module belongs to.
NOBODY = -1


class Call:
    """One entry into a module."""

    __slots__ = ("has_children", "module", "output_bytes")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.has_children = False
        self.output_bytes = 0


class Modules:
    """The module calls of one deep step, in order of entry.

    Attributes
    ----------
    owner : int
        The call entered last: whom the next operator belongs to.
    roots : list
        Modules that were called from outside of any other.
    leading_sizes : list of int
        Samples in the first tensor that reached each call of a root that learns: its first
        dimension, or the second where a recurrent or attention module in there is told that time
        comes first. A loss is a root too, and often sees every token as a row.
    """

    def __init__(self) -> None:
        self.owner = NOBODY
        self.roots: list[Any] = []
        self.leading_sizes: list[int] = []
        self.singles: dict[int, int] = {}
        self._calls: list[Call] = []
        self._stack: list[int] = []
        self._numbers: list[int] = []  # autograd's next number at each entry
        self._handles: list[Any] = []
        self._is_size_wanted = False
        self._is_batch_open = False
        self._root_shape: tuple[int, ...] = ()

    def __enter__(self) -> Modules:
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._entered),
            module.register_module_forward_hook(self._left, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward is running."""
        return bool(self._stack)

    def _entered(self, module: Any, args: Any) -> None:
        import torch

        if self._stack:
            self._calls[self._stack[-1]].has_children = True
        else:
            self._is_size_wanted = any(True for _ in module.parameters())
            self._root_shape = ()
            if not any(module is root for root in self.roots):
                self.roots.append(module)
        if self._is_size_wanted:
            for tensor in tensors_in(args):
                self._root_shape = tuple(tensor.shape)
                self.leading_sizes.append(int(tensor.shape[0]) if tensor.dim() else 1)
                self._is_size_wanted = False
                self._is_batch_open = True
                break
        is_time_first = getattr(module, "batch_first", None) is False
        if is_time_first and len(self._root_shape) > 1:
            self._time_comes_first(args)
        if self._is_batch_open:
            self._look_for_batch(module, args)
        self.owner = len(self._calls)
        self._stack.append(self.owner)
        self._calls.append(Call(module))
        self._numbers.append(torch._C._autograd._get_sequence_nr())

    def _look_for_batch(self, module: Any, args: Any) -> None:
        """Count one sample if the first layer whose input's layout is known sees no batch."""
        import torch

        dimensions = batched_dimensions(module)
        if not dimensions:
            return
        self._is_batch_open = False
        for tensor in tensors_in(args):
            if tensor.dim() < dimensions and tuple(tensor.shape) == self._root_shape:
                self.leading_sizes[-1] = 1
            break
        if self.leading_sizes[-1] == 1 and torch.is_grad_enabled():
            root = self._calls[self._stack[0]].module if self._stack else module
            self.singles[id(root)] = self.singles.get(id(root), 0) + 1

    def _time_comes_first(self, args: Any) -> None:
        """Count samples by the second dimension if this module's input has the root's layout."""
        for tensor in tensors_in(args):
            shape = tuple(tensor.shape)
            if len(shape) == 3 and shape[:2] == self._root_shape[:2]:
                self.leading_sizes[-1] = int(shape[1])
            return

    def _left(self, module: Any, args: Any, output: Any) -> None:
        # A pre-hook that raised leaves its module on the stack: leave until this one.
        while self._stack:
            call = self._calls[self._stack.pop()]
            if call.module is module:
                call.output_bytes = sum(size_bytes(tensor) for tensor in tensors_in(output))
                return

    def of_node(self, number: int) -> int:
        """Return the call whose forward created the autograd node with this number."""
        return bisect_right(self._numbers, number) - 1 if number < 2**63 else NOBODY

    def fused_kind(self, owner: int) -> str:
        """Return the class of a call's module if accelerators compute all of it by few kernels.

        PyTorch's recurrent layers (cuDNN's): elsewhere each of their time steps is many operators.
        Cells that a script calls step by step stay so everywhere.
        """
        if not 0 <= owner < len(self._calls):
            return ""
        kind = type(self._calls[owner].module)
        is_layer = kind.__module__ == "torch.nn.modules.rnn" and not kind.__name__.endswith("Cell")
        return kind.__name__ if is_layer else ""

    def layers(self, sizes: Mapping[int, int]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the leaves in forward order, and for every call the index of its leaf.

        ``sizes``: a parameter's identity -> its elements on all ranks, where that is more.
        A call that had children passes what it did before them to the first of them.
        """
        names: dict[int, str] = {}
        for root in self.roots:
            prefix = type(root).__name__ + "." if len(self.roots) > 1 else ""
            for name, module in root.named_modules():
                names.setdefault(id(module), prefix + (name or type(root).__name__))
        found: list[dict[str, Any]] = []
        index_of: dict[int, int] = {}
        leaf_of_call = [0] * len(self._calls)
        following = None
        for number in range(len(self._calls) - 1, -1, -1):
            if not self._calls[number].has_children:
                following = number
            leaf_of_call[number] = number if following is None else following
        for number, call in enumerate(self._calls):
            if leaf_of_call[number] != number:
                continue
            module = call.module
            if id(module) not in index_of:
                index_of[id(module)] = len(found)
                found.append(
                    {
                        "name": names.get(id(module), type(module).__name__),
                        "kind": type(module).__name__,
                        "parameters": sum(
                            sizes.get(id(p), p.numel()) for p in module.parameters()
                        ),
                        "output_bytes": 0,
                    }
                )
            found[index_of[id(module)]]["output_bytes"] += call.output_bytes
        return found, [index_of[id(self._calls[leaf].module)] for leaf in leaf_of_call]


def batched_dimensions(module: Any) -> int:
    """Return how many dimensions a batch has for a layer that takes single samples too; 0 unknown.

    Linear layers take (features,), convolutions over n dimensions (channels, *n) as one sample.
    """
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return 2
    sizes = getattr(module, "kernel_size", None)
    if hasattr(module, "in_channels") and isinstance(sizes, tuple):
        return len(sizes) + 2
    return 0
