"""``advisor runs actual``: say what a real run took, so that later estimates are narrower."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="The recorded run whose job it was.")],
    instance_type: Annotated[str, typer.Argument(help="What it ran on, e.g. g5.xlarge.")],
    step_time: Annotated[float, typer.Option(help="Mean optimizer step, in seconds.")],
    count: Annotated[int, typer.Option(help="Machines.")] = 1,
    provider: Annotated[
        str | None, typer.Option(help="Where two providers use the same name.")
    ] = None,
) -> None:
    """Add a measured step of a real run to the job's anchors."""
    from advisor.actuals import Actual, append_actual
    from advisor.catalogue import Catalogue
    from advisor.collectors import store

    path = store.find_run(run)
    row = Catalogue.load().instance_type(instance_type, provider=provider)
    actual = Actual(
        run=path.name, provider=row.provider, instance_type=row.name, count=count, step_s=step_time
    )
    append_actual(path.parent, actual)
    typer.echo(f"noted: {count} x {row.name} takes {step_time:g} s a step", err=True)
