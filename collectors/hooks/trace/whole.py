"""The whole model behind one rank's part of it, in a rehearsal: one rank is all that runs.

Ranks share a model in two ways. Its *state* may be cut into shards (FSDP, ZeRO): every rank
computes on all of it, and updates its own part. And its *work* may be divided (tensor
parallelism): a rank holds a slice of a weight, and what it computes with that is a slice, too,
until ranks add up or gather what they have. Whatever is divided counts as often as there are
ranks, whatever every rank repeats counts once.

Which weights are slices is known of distributed tensors by their placements, and of Megatron's by
an attribute. A script that does it by hand shows it by what its products go through: partial sums
of a product are added over a group in the forward pass; the product's weight is a slice then, and
so is that of the product before (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .operators import OperatorCall
from .storages import key_of

_ADDED = ("allreduce", "all_reduce", "reduce_scatter")
# So many weights do not lead to one sum: what adds up over residual connections is left alone.
_MOST_NEAR = 64
# What hands other ranks their part of a computation that differs from this rank's.
_ELSEWHERE = {
    "send": "stages of a pipeline", "recv": "stages of a pipeline",
    "isend": "stages of a pipeline", "irecv": "stages of a pipeline",
    "batch_p2p": "stages of a pipeline", "alltoall": "experts or parts of sequences",
    "all_to_all": "experts or parts of sequences",
}  # fmt: skip


class WholeModel:
    """The parameters of a model, and what of it this rank has.

    Attributes
    ----------
    sizes : dict
        A parameter's identity -> its elements on all ranks; empty where all of them are here.
    parts : dict
        Storage -> ranks that hold other parts of it, this one included.
    ranks : int
        Those that divide the work of a sample.
    elsewhere : str
        What other ranks compute that this one's step does not show.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.sizes: dict[int, int] = {}
        self.parts: dict[int, int] = {}
        self.ranks = 1
        self.elsewhere = ""
        self._of_modules: set[int] = set()

    @classmethod
    def of_rank(
        cls, parameters: list[Any], roots: list[Any], calls: list[OperatorCall],
        placed: Mapping[int, int],
    ) -> WholeModel:  # fmt: skip
        """Return the model of which a rank has a part. Sets the calls' ``ranks``."""
        found = cls(parameters)
        weights = _divided_weights(calls, placed, parameters)
        found.parts = _shares(calls, weights) if weights else {}
        found.sizes = _sizes(parameters, roots)
        found._of_modules = {id(one) for root in roots for one in root.parameters()}
        for one in parameters:
            if one is local(one):  # a distributed tensor says its whole size
                found.sizes[id(one)] *= weights.get(key_of(one), 1)
        found.ranks = max((call.ranks for call in calls if call.is_product), default=1)
        found.elsewhere = _elsewhere(calls)
        return found

    def size(self, parameter: Any) -> int:
        """Return a parameter's elements on all ranks."""
        return self.sizes.get(id(parameter), int(parameter.numel()))

    def _bytes(self, tensor: Any) -> int:
        """Return the bytes of a tensor: in a rehearsal, those that this rank has."""
        elements = _elements(tensor) if self.sizes else int(tensor.numel())
        return elements * int(tensor.element_size())

    def facts(self, updated: list[Any], states: list[Any]) -> dict[str, Any]:
        """Return what the recording keeps of the model.

        ``updated``, ``states``: what the optimizers have on this rank. They may update copies in
        32 bits of what the modules compute with, or shards of these.
        """
        parameters, trained, copies = self.parameters, updated, []
        if self.sizes and not any(id(one) in self._of_modules for one in updated):
            own = [one for one in parameters if id(one) in self._of_modules]
            learning = [one for one in own if one.requires_grad]
            if sum(map(self.size, learning)) >= sum(map(_elements, updated)) > 0:
                parameters, trained, copies = own, learning, updated
        kept = sum(self._bytes(one) for one in [*states, *copies])
        shards = 1.0
        if self.sizes and updated:
            shards = max(1.0, sum(map(self.size, trained)) / max(sum(map(_elements, updated)), 1))
        return {
            "parameters": sum(map(self.size, parameters)),
            "trainable_parameters": sum(self.size(p) for p in parameters if p.requires_grad),
            "parameter_bytes": sum(self.size(p) * p.element_size() for p in parameters),
            "optimizer_state_bytes": round(kept * shards),
            "gradient_bytes": sum(
                self.size(p) * p.element_size() for p in parameters if p.requires_grad
            ),
            "shards": shards,
            "ranks": self.ranks,
            "elsewhere": self.elsewhere,
        }


def _elements(tensor: Any) -> int:
    """Return the elements that this rank has of a tensor."""
    return int(local(tensor).numel())


def local(tensor: Any) -> Any:
    """Return a distributed tensor's own shard."""
    return getattr(tensor, "_local_tensor", tensor)


def _sizes(parameters: Iterable[Any], roots: Iterable[Any]) -> dict[int, int]:
    """Return the elements of each whole parameter, by identity, whatever this rank has of it."""
    found: dict[int, int] = {}
    for root in roots:
        for module in root.modules():
            flat = getattr(getattr(module, "_handle", None), "flat_param", None)  # FSDP
            sizes = getattr(flat, "_numels", None)
            if sizes is None:
                continue
            found[id(flat)] = sum(sizes)
            found.update(zip(map(id, getattr(flat, "_params", None) or ()), sizes))
    for one in parameters:
        own = getattr(one, "ds_numel", None)  # DeepSpeed, stage 3
        found.setdefault(id(one), int(one.numel() if own is None else own))
    return found


def _divided_weights(
    calls: Sequence[OperatorCall], placed: Mapping[int, int], parameters: Iterable[Any]
) -> dict[int, int]:
    """Return the weights that are slices: storage -> ranks that hold the others, itself included.

    ``placed``: those that distributed tensors' placements tell.
    """
    if placed:  # shards, too: no product reads those
        computed = [call for call in calls if call.is_product and not call.is_optimizer]
        read = {key for call in computed for key, _ in call.reads}
        return {key: ranks for key, ranks in placed.items() if key in read}
    weights = {key_of(local(one)): one for one in parameters}
    found, ranks = _by_sums(calls, set(weights))
    named = {k for k, one in weights.items() if getattr(one, "tensor_model_parallel", False)}
    return dict.fromkeys(named or found, ranks) if ranks > 1 else {}


def _by_sums(calls: Sequence[OperatorCall], weights: set[int]) -> tuple[set[int], int]:
    """Return the weights whose products are added over a group, and the group's ranks."""
    groups = {call.group for call, near, is_sum in _nearest(calls, weights) if is_sum and near[0]}
    if not groups:
        return set(), 1
    found: set[int] = set()
    for call, near, is_sum in _nearest(calls, weights):
        if call.group in groups:
            found |= near[0] | (near[1] if is_sum else set())
    return found, max(ranks for _, ranks in groups)


def _nearest(calls: Sequence[OperatorCall], weights: set[int]) -> Any:
    """Yield the forward pass's collectives that add, with the weights that led there.

    Yields
    ------
    call
        The collective.
    near : pair of set
        Weights with no product, and with one product, between them and the collective.
    is_sum : bool
        Whether it adds what a product has just computed.
    """
    near: dict[int, tuple[set[int], set[int]]] = {}
    derived: dict[int, set[int]] = {}  # what is computed of weights alone: casts, transposes
    of_product: set[int] = set()
    for call in calls:
        if call.is_backward or call.is_optimizer:
            continue
        read, written = _ends(call)
        direct, between = set(), set()
        for key in read:
            direct |= near.get(key, (set(), set()))[0]
            between |= near.get(key, (set(), set()))[1]
        if call.group is not None:
            if call.group[1] > 1 and any(word in call.name for word in _ADDED):
                yield call, (direct, between), any(key in of_product for key in read)
            for key in written:
                near.pop(key, None)
                of_product.discard(key)
            continue
        own: set[int] = set()
        for key in read:
            own |= {key} if key in weights else derived.get(key, set())
        if own and all(key in weights or key in derived for key in read):
            derived.update(dict.fromkeys(written, own))
            continue
        if call.is_product and own:
            direct, between = own, direct
        if len(direct) + len(between) > _MOST_NEAR:
            direct, between = set(), set()
        for key in written:
            near[key] = direct, between
            (of_product.add if call.is_product else of_product.discard)(key)


def _shares(calls: Sequence[OperatorCall], weights: Mapping[int, int]) -> dict[int, int]:
    """Return of which storages other ranks hold other parts: storage -> ranks.

    Sets each call's ``ranks``, those whose work differs from this rank's in it, itself included,
    and ``parts``, the storages among its own that are slices, as they were then. What is computed
    of a slice is a slice, until a collective of the forward pass's groups makes it the same
    everywhere; other groups average gradients, which stay slices. What ranks add up is as large
    as their sum, which is all that one device would write.
    """
    found, groups = dict(weights), set()
    gradients: set[int] = set()
    addends: set[int] = set()
    for call in calls:
        read, written = _ends(call)
        ranks = max((found.get(key, 1) for key in read), default=1)
        if call.group is not None:
            if ranks > 1 and not call.is_backward and not gradients.intersection(read):
                groups.add(call.group)
            if call.group in groups:
                is_sum = any(word in call.name for word in _ADDED)
                addends.update(read if is_sum else ())
                if "reduce_scatter" not in call.name:
                    ranks = max(ranks // call.group[1], 1)
        elif not call.is_gather:  # of a divided table every rank looks all its tokens up
            call.ranks = ranks
        if call.is_backward:
            gradients.update(written)
        for key in written:
            if ranks > 1:
                found.setdefault(key, ranks)
            elif key not in weights:
                found.pop(key, None)
        call.parts = {key: found[key] for key in (*read, *written) if key in found}
    for call in calls:
        call.parts = {key: n for key, n in call.parts.items() if key not in addends}
    return {key: ranks for key, ranks in found.items() if key not in addends}


def _ends(call: OperatorCall) -> tuple[list[int], list[int]]:
    """Return the storages that a call reads, and those it writes."""
    read = [key for key, _ in call.reads]
    name = call.name.rpartition("::")[2]
    if not call.name.startswith("c10d::"):
        return read, [key for key, _ in call.writes]
    if name.startswith("allgather_"):
        return read[-1:], read[:-1]
    if name in ("_allgather_base_", "_reduce_scatter_base_", "reduce_scatter_", "alltoall_base_"):
        return read[1:], read[:1]
    return read, read


def _elsewhere(calls: Iterable[OperatorCall]) -> str:
    """Return what other ranks compute that one rank's step does not show; empty for nothing."""
    for call in calls:
        if call.group is not None and call.group[1] > 1:
            name = call.name.rpartition("::")[2]
            for word, what in _ELSEWHERE.items():
                if name.startswith(word):
                    return what
    return ""
