"""Adds up the operators, parameters and kept activations of a described model, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layer, Operator, OperatorKind, Phase, Precision, Work
from advisor.planners.step.describe_operators import Tally
from advisor.planners.step.describe_updates import update


@dataclass(frozen=True, slots=True)
class Mark:
    """How much had been added to a ledger at a place."""

    operators: int
    parameters: int
    kept: int


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What has been added so far, in forward order.

    ``marks`` are the parameters up to each operator, its own included: frozen parameters are the
    first ones, and operators among them have no backward pass and keep nothing for it.
    """

    tally: Tally
    batch: int
    operators: list[Operator] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    kept: list[tuple[int, float]] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0
    adapters: int = 0
    quantised: int = 0
    tensors: int = 0

    def add(self, operators: list[Operator]) -> None:
        """Add operators at this place."""
        self.operators += operators
        self.marks += [self.parameters] * len(operators)

    def pointwise(
        self, name: str, kind: OperatorKind, elements: float,
        passes: tuple[float, float], calls: tuple[float, float], *, element: int | None = None,
    ) -> None:  # fmt: skip
        """Add an operator that streams over ``elements``; see ``Tally.pointwise``."""
        self.add(self.tally.pointwise(name, kind, elements, passes, calls, element=element))

    def own(self, parameters: int, tensors: int = 1) -> None:
        """Add the parameters of the operators that are added next."""
        self.parameters += parameters
        self.tensors += tensors

    def keep(self, bytes_: float) -> None:
        """Add activations that the backward pass reads [bytes of the batch]."""
        self.kept.append((self.parameters, bytes_))

    def linear(
        self, name: str, rows: float, inner: int, columns: int, *, has_bias: bool = True,
        keeps_input: bool = True, is_shared: bool = False,
    ) -> None:  # fmt: skip
        """Add a dense layer.

        Parameters
        ----------
        keeps_input : bool
            Its input is kept for the backward pass; false where another layer keeps it already.
        """
        setup = self.tally.setup
        if not is_shared:
            self.own(inner * columns + has_bias * columns, 1 + has_bias)
            self.adapters += setup.adapts(name) * (setup.adapter_rank or 0) * (inner + columns)
            self.quantised += setup.is_quantised(name) * inner * columns
        self.add(self.tally.product(name, rows, inner, columns, has_bias=has_bias))
        if keeps_input:
            self.keep(self.tally.element * rows * inner)

    def convolution(
        self, side: int, channels: int, width: int, kernel: int, stride: int,
        *, has_bias: bool = True,
    ) -> int:  # fmt: skip
        """Add a square convolution; return the side behind it."""
        out = -(-side // stride)
        element = self.tally.element
        weight = channels * width * kernel**2
        read = element * self.batch * channels * side**2
        made = element * self.batch * width * out**2
        flop = 2.0 * self.batch * weight * out**2
        # Backward in one call by input and by weight; nothing is handed back to the image.
        kind: OperatorKind = "winograd" if kernel == 3 and stride == 1 else "convolution"
        by_input, written = (1, read) if self.operators else (0, 0.0)
        by_weight = 0 if self.tally.setup.has_adapters else 1
        self.own(weight + has_bias * width, 1 + has_bias)
        both: tuple[tuple[Phase, int, float, int], ...] = (
            ("forward", 1, read + made, 1),
            ("backward", by_input + by_weight, read + made + written, 2),
        )
        self.add([
            self.tally.operator(
                "convolution", kind, phase, 1, times * flop, moved,
                copies * element * weight,
            )
            for phase, times, moved, copies in both
            if times
        ])  # fmt: skip
        self.keep(read)
        return out

    def close_layer(self, name: str, kind: str, since: Mark, output_bytes: float) -> None:
        """Record what was added since a mark as one layer that a pipeline may put anywhere."""
        added = self.operators[since.operators :]
        forward, backward = (
            sum(o.flop for o in added if o.phase == phase) / self.batch
            for phase in ("forward", "backward")
        )
        self.layers.append(
            Layer(
                name=name, parameters=self.parameters - since.parameters,
                forward_flop_per_sample=forward, backward_flop_per_sample=backward,
                output_bytes_per_sample=output_bytes / self.batch,
                saved_bytes_per_sample=sum(b for _, b in self.kept[since.kept :]) / self.batch,
                kind=kind,
            )
        )  # fmt: skip

    def mark(self) -> Mark:
        """Return this place, for ``close_layer``."""
        return Mark(len(self.operators), self.parameters, len(self.kept))

    def work(self, precision: Precision, *, input_bytes_per_sample: float) -> Work:
        """Return the whole as the work of a step.

        Raises
        ------
        PlanningError
            If adapters are asked for and the model has no matrix that takes them.
        """
        setup = self.tally.setup
        if setup.has_adapters and not self.adapters:
            raise PlanningError(
                "the model has no matrices for adapters",
                hint="leave out the adapters, or freeze a share of the layers",
                exit_code=2,
            )
        frozen = setup.frozen_fraction * self.parameters
        trained = self.adapters or round(self.parameters - frozen)
        operators = [
            operator
            for mark, operator in zip(self.marks, self.operators, strict=True)
            if operator.phase != "backward" or not 0 < mark <= frozen
        ]
        saved = sum(bytes_ for mark, bytes_ in self.kept if not 0 < mark <= frozen)
        return Work(
            operators=(
                *_merged(operators),
                update(trained, setup, precision, tensors=self.tensors),
            ),
            micro_batch=self.batch,
            parameters=self.parameters + self.adapters,
            trainable_parameters=trained,
            parameter_bytes=self._stored_bytes(trained, precision),
            optimizer_state_bytes=trained * setup.moment_bytes(precision),
            saved_bytes_per_sample=saved / self.batch,
            input_bytes_per_sample=input_bytes_per_sample,
            layers=tuple(self.layers),
            precision=precision,
            setup=setup,
        )

    def _stored_bytes(self, trained: int, precision: Precision) -> float:
        setup = self.tally.setup
        unquantised = replace(setup, base_bits=16).frozen_bytes(precision)
        frozen = self.parameters - (0 if self.adapters else trained)
        return (
            trained * setup.stored_bytes(precision)
            + (frozen - self.quantised) * unquantised
            + self.quantised * setup.frozen_bytes(precision)
        )


def _merged(operators: list[Operator]) -> list[Operator]:
    """Join operators whose calls are alike: repeated blocks cost their number, not their list."""
    found: dict[tuple[object, ...], Operator] = {}
    for o in operators:
        sizes = (o.flop / o.count, o.bytes / o.count, o.fixed_bytes / o.count)
        key = (o.name, o.kind, o.phase, o.dtype, *sizes)
        seen = found.get(key)
        found[key] = o if seen is None else replace(
            seen, count=seen.count + o.count, flop=seen.flop + o.flop,
            bytes=seen.bytes + o.bytes, fixed_bytes=seen.fixed_bytes + o.fixed_bytes,
        )  # fmt: skip
    return list(found.values())
