"""What the training frameworks' own loops say about the job's length."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


def state(frame: FrameType) -> dict[str, Any] | None:
    """Return the framework's word if ``frame`` is its training loop, else None."""
    name = frame.f_code.co_name
    module = str(frame.f_globals.get("__name__", ""))
    if module.startswith(("lightning", "pytorch_lightning")) and name == "advance":
        return _lightning(frame.f_locals)
    if module.startswith("transformers") and name == "_inner_training_loop":
        return _hugging_face(frame.f_locals)
    if module.startswith("keras") and name == "fit":
        return _keras(frame.f_locals)
    return None


def _lightning(variables: dict[str, Any]) -> dict[str, Any] | None:
    loop: Any = variables.get("self")
    if type(loop).__name__ != "_FitLoop":
        return None
    trainer = loop.trainer
    steps = trainer.estimated_stepping_batches
    if not isinstance(steps, int):  # infinite: no bound was given
        return None
    return {
        "steps": steps,
        "epochs": loop.max_epochs if (loop.max_epochs or -1) > 0 else None,
        "source": "Lightning trainer.estimated_stepping_batches",
        "confidence": "certain",
    }


def _hugging_face(variables: dict[str, Any]) -> dict[str, Any] | None:
    steps = variables.get("max_steps")
    if not isinstance(steps, int) or steps <= 0:
        steps = getattr(getattr(variables.get("self"), "state", None), "max_steps", None)
    if not isinstance(steps, int) or steps <= 0:
        return None
    return {
        "steps": steps,
        "epochs": variables.get("num_train_epochs"),
        "source": "Hugging Face Trainer state.max_steps",
        "confidence": "certain",
    }


def _keras(variables: dict[str, Any]) -> dict[str, Any] | None:
    epochs = variables.get("epochs")
    iterator = variables.get("epoch_iterator")
    per_epoch = variables.get("steps_per_epoch") or getattr(iterator, "num_batches", None)
    if not isinstance(epochs, int) or not per_epoch:
        return None
    return {
        "steps": epochs * int(per_epoch),
        "epochs": epochs,
        "source": "Keras fit(epochs) x batches",
        "confidence": "certain",
    }
