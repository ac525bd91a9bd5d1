"""``advisor train``: fit the constants and models again, one thing fitted a verb."""

from __future__ import annotations

import typer

from advisor.train import device_fit, layout_model, memory_model, models, scaling

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Fit the models' constants again from measurements.",
)
app.command("device-model")(device_fit.command)
app.command("scaling")(scaling.command)
app.command("memory")(memory_model.command)
app.command("layout-model")(layout_model.command)
app.command("models")(models.command)
