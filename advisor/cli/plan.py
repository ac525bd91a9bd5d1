"""``advisor plan``: the layout of a transformer on a given cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    cluster: Annotated[
        str,
        typer.Option(
            help='Machines: "2x a2-highgpu-8g + 4x g2-standard-48", '
            '"8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps", or a .json or .toml file.'
        ),
    ],
    batch: Annotated[int, typer.Option(help="Global batch, in sequences.")],
    model: Annotated[
        Path | None, typer.Option(help="config.json of a Hugging Face model, or its folder.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a sequence; the model's longest otherwise.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Without --model.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Without --model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Without --model.")] = None,
    vocabulary: Annotated[int, typer.Option(help="Without --model.")] = 50304,
    objective: Annotated[str, typer.Option(help="time or cost.")] = "time",
    precision: Annotated[str, typer.Option(help="bf16, fp16, fp8 or tf32.")] = "bf16",
    tp: Annotated[int | None, typer.Option(help="Exactly this tensor-parallel degree.")] = None,
    pp: Annotated[int | None, typer.Option(help="Exactly so many pipeline stages.")] = None,
    zero: Annotated[int | None, typer.Option(help="Exactly this ZeRO stage.")] = None,
    recompute: Annotated[
        str | None, typer.Option(help="Exactly this: none, selective or full.")
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload/--no-offload", help="Admit offloading to host memory.")
    ] = True,
    coverage: Annotated[float, typer.Option(help="Of the intervals: 0.5 to 0.99.")] = 0.9,
    catalogue: Annotated[
        Path | None, typer.Option(help="Folder of a snapshot of prices other than the bundled.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Choose how to spread a transformer over a cluster, and print what to run.

    Exit code 3 means that no layout fits; the message says what would.
    """
    from advisor.catalogue import Catalogue
    from advisor.clusters import read_cluster
    from advisor.plan import PlanRequest, plan
    from advisor.plan.terminal import show

    answer = plan(
        PlanRequest(
            transformer=_transformer(model, sequence, layers, hidden, heads, vocabulary),
            cluster=read_cluster(cluster, Catalogue.load(catalogue)),
            global_batch=batch,
            objective=_one_of("objective", objective, ("time", "cost")),
            precision=_one_of("precision", precision, ("bf16", "fp16", "fp8", "tf32")),
            space=_space(tp, pp, zero, recompute, offload),
            coverage=_coverage(coverage),
        )
    )
    typer.echo(json.dumps(answer.to_record(), indent=2) if as_json else show(answer))


def _transformer(
    model: Path | None,
    sequence: int | None,
    layers: int | None,
    hidden: int | None,
    heads: int | None,
    vocabulary: int,
) -> Any:
    from advisor.errors import UsageError
    from advisor.plan import read_transformer
    from advisor.planners.nouns import Transformer

    if model is not None:
        return read_transformer(model, sequence=sequence)
    if layers is None or hidden is None or heads is None:
        raise UsageError(
            "no model: its dimensions are needed",
            hint="--model config.json, or --layers, --hidden and --heads",
        )
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence=2048 if sequence is None else sequence,
        vocabulary=vocabulary,
    )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    from advisor.errors import UsageError

    if value not in known:
        raise UsageError(f"--{option} {value!r} is unknown", hint=f"one of: {', '.join(known)}")
    return value


def _coverage(value: float) -> float:
    from advisor.errors import UsageError

    if not 0.5 <= value <= 0.99:
        raise UsageError(f"--coverage {value} makes no sense", hint="between 0.5 and 0.99")
    return value


def _space(
    tp: int | None, pp: int | None, zero: int | None, recompute: str | None, offload: bool
) -> Any:
    from dataclasses import replace

    from advisor.errors import UsageError
    from advisor.plan.request import SPACE

    if zero is not None and zero not in (0, 1, 2, 3):
        raise UsageError(f"--zero {zero} makes no sense", hint="0, 1, 2 or 3")
    if recompute is not None:
        _one_of("recompute", recompute, ("none", "selective", "full"))
    changes: dict[str, Any] = {"tp": tp, "pp": pp}
    if zero is not None:
        changes["zero_stages"] = (zero,)
    if recompute is not None:
        changes["recomputes"] = (recompute,)
    if not offload:
        changes["offloads"] = ()
    return replace(SPACE, **changes)
