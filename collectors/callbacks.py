"""Step markers as a framework's own callbacks, for those who prefer code to hooks.

Both classes are made when they are asked for, so that neither framework is imported before::

    from advisor.collectors.callbacks import lightning_callback
    trainer = lightning.Trainer(callbacks=[lightning_callback()])

    from advisor.collectors.callbacks import hugging_face_callback
    trainer = transformers.Trainer(..., callbacks=[hugging_face_callback()])
"""

from __future__ import annotations

from typing import Any

from advisor.collectors.marker import step


def lightning_callback() -> Any:
    """Return a Lightning ``Callback`` that marks every optimizer step.

    Raises ImportError if neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningStepMarker(Callback):  # type: ignore[misc]
        """Marks a step when the trainer's count of optimizer steps has gone up."""

        def __init__(self) -> None:
            self._seen = 0

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Mark the step that ended with this batch, if one did."""
            if trainer.global_step > self._seen:
                self._seen = trainer.global_step
                total = trainer.estimated_stepping_batches
                step(total_steps=total if isinstance(total, int) else None)

    return LightningStepMarker()


def hugging_face_callback() -> Any:
    """Return a Hugging Face ``TrainerCallback`` that marks every optimizer step.

    Raises ImportError if ``transformers`` is not installed.
    """
    from transformers import TrainerCallback

    class TrainerStepMarker(TrainerCallback):  # type: ignore[misc]
        """Marks the steps that the trainer itself counts."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Mark the step."""
            batch = args.train_batch_size * args.gradient_accumulation_steps
            step(samples=batch, total_steps=state.max_steps or None)

    return TrainerStepMarker()
