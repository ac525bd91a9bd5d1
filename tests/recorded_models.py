"""Recorded models described in numbers (synthetic): a transformer of equal blocks, a small CNN."""

from __future__ import annotations

from advisor.planners.core import Layer, Operator, Operators, Work


def work_of(layers: list[Layer], micro_batch: int = 4, *, has_attention: bool = False) -> Work:
    """Return a step whose operators add up to its layers, trained with Adam in fp32."""
    parameters = sum(layer.parameters for layer in layers)
    operators = [
        Operator(
            name="aten::scaled_dot_product_attention" if has_attention else "aten::addmm",
            kind="attention" if has_attention else "matmul",
            phase=phase,  # type: ignore[arg-type]
            count=len(layers) * times,
            flop=times * micro_batch * sum(x.forward_flop_per_sample for x in layers),
            bytes=times * micro_batch * sum(x.output_bytes_per_sample for x in layers),
        )
        for phase, times in (("forward", 1), ("backward", 2))
    ]
    operators.append(
        Operator(
            name="aten::_foreach_add_",
            kind="optimizer",
            phase="optimizer",
            count=10,
            flop=4.0 * parameters,
            bytes=20.0 * parameters,
            fixed_bytes=20.0 * parameters,
        )
    )
    return Work(
        operators=Operators.of(operators),
        micro_batch=micro_batch,
        parameters=parameters,
        trainable_parameters=parameters,
        parameter_bytes=4.0 * parameters,
        optimizer_state_bytes=8.0 * parameters,
        saved_bytes_per_sample=sum(x.saved_bytes_per_sample for x in layers),
        input_bytes_per_sample=4096.0,
        layers=tuple(layers),
    )


def layer(name: str, kind: str, parameters: int, flop: float, width: float) -> Layer:
    """Return a layer that hands on and keeps ``width`` bytes a sample."""
    return Layer(
        name=name,
        kind=kind,
        parameters=parameters,
        forward_flop_per_sample=flop,
        backward_flop_per_sample=2 * flop,
        output_bytes_per_sample=width,
        saved_bytes_per_sample=width,
        forward_s=flop / 1e11,
        backward_s=2 * flop / 1e11,
    )


def transformer(blocks: int = 6, hidden: int = 512, tokens: int = 128) -> Work:
    """Return embedding, blocks of attention and feed-forward, norm and head."""
    h, stream = hidden, 4.0 * hidden * tokens
    found = [layer("embed", "Embedding", 1000 * h, 0.0, stream)]
    for i in range(blocks):
        parts = (
            ("norm1", "LayerNorm", 2 * h, 1),
            ("qkv", "Linear", 3 * h * (h + 1), 3),
            ("proj", "Linear", h * (h + 1), 1),
            ("norm2", "LayerNorm", 2 * h, 1),
            ("fc1", "Linear", 4 * h * (h + 1), 4),
            ("fc2", "Linear", (4 * h + 1) * h, 1),
        )
        found += [
            layer(f"blocks.{i}.{n}", kind, p, 2.0 * p * tokens, stream * wide)
            for n, kind, p, wide in parts
        ]
    found += [
        layer("norm", "LayerNorm", 2 * h, 0.0, stream),
        layer("head", "Linear", 1000 * (h + 1), 2e3 * h * tokens, 4000.0 * tokens),
    ]
    return work_of(found, has_attention=True)


def convolutions() -> Work:
    """Return unlike convolutions, the early ones wide and the late ones heavy."""
    sizes = [(3, 64, 4e6, 8e5), (64, 128, 3e6, 4e5), (128, 256, 6e6, 2e5), (256, 512, 9e6, 1e5)]
    found = []
    for i, (before, after, flop, width) in enumerate(sizes):
        found.append(layer(f"conv{i}", "Conv2d", 9 * before * after, 100 * flop, width))
        found.append(layer(f"relu{i}", "ReLU", 0, 0.0, width))
    found.append(layer("classifier", "Linear", 513 * 10, 1e4, 40.0))
    return work_of(found)
