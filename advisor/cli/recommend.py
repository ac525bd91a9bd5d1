"""``advisor recommend``: rank cloud configurations for a recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[
        str | None, typer.Option("--run", help="Name or folder of a run; the latest otherwise.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Most to spend on the job, in USD.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Longest the job may take: 6h, 90m, 2d.")
    ] = None,
    cloud: Annotated[str | None, typer.Option(help="Providers, comma-separated: aws,gcp.")] = None,
    region: Annotated[str | None, typer.Option(help="Regions, as a glob: 'us-*'.")] = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="Accelerators per machine: A100:8, L4, A100:40GB..80GB:1..8."),
    ] = None,
    max_nodes: Annotated[int, typer.Option(help="Most machines rented together.")] = 8,
    max_price: Annotated[
        float | None, typer.Option(help="Most for one machine, in USD per hour.")
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot/--on-demand", help="Admit spot prices beside on-demand ones.")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option(help="Whether the job can go on from a checkpoint (spot needs it).")
    ] = True,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Folder of a snapshot of prices other than the bundled one."),
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the job.")] = None,
    total_steps: Annotated[float | None, typer.Option(help="Length of the job.")] = None,
    total_samples: Annotated[float | None, typer.Option(help="Length of the job.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per step over all workers; as recorded otherwise.")
    ] = None,
    coverage: Annotated[float, typer.Option(help="Of the intervals: 0.5, 0.8, 0.9, 0.95.")] = 0.9,
    top: Annotated[int, typer.Option("--top", "-n", help="Most candidates shown.")] = 10,
    probe: Annotated[
        bool, typer.Option("--probe", help="Say which short real run would help most to choose.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Rank cloud configurations for a recorded run by training time and cost.

    Exit code 3 means that nothing satisfies the constraints; the nearest misses are shown.
    """
    from advisor import api

    answer = api.recommend(
        run,
        budget=budget,
        deadline=deadline,
        cloud=cloud,
        region=region,
        gpus=gpus,
        max_nodes=max_nodes,
        max_price=max_price,
        spot=spot,
        checkpoints=checkpoints,
        catalogue=catalogue,
        epochs=epochs,
        total_steps=total_steps,
        total_samples=total_samples,
        global_batch=global_batch,
        coverage=coverage,
        top=top,
        probes=probe,
    )
    if as_json:
        typer.echo(json.dumps(answer.to_record(), indent=2))
    else:
        from rich.console import Console

        from advisor.report import terminal

        terminal.show(answer, Console())
        if probe:
            terminal.show_probes(answer, Console())
    if not answer.front:
        raise typer.Exit(3)
