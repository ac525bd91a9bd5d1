"""The job's length by the training frameworks' own loops."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


def state(frame: FrameType) -> dict[str, Any] | None:
    """Return the framework's word if ``frame`` is its training loop, else None."""
    name = frame.f_code.co_name
    module = str(frame.f_globals.get("__name__", ""))
    for packages, function, read in _LOOPS:
        if module.startswith(packages) and name == function:
            found = read(frame.f_locals)
            named = zip(("steps", "epochs", "source"), found or ())
            return dict(named, confidence="certain") if found else None
    return None


def _lightning(variables: dict[str, Any]) -> Any:
    loop: Any = variables.get("self")
    if type(loop).__name__ != "_FitLoop":
        return None
    steps = loop.trainer.estimated_stepping_batches
    if not isinstance(steps, int):  # infinite: no bound was given
        return None
    epochs = loop.max_epochs if (loop.max_epochs or -1) > 0 else None
    return steps, epochs, "Lightning trainer.estimated_stepping_batches"


def _hugging_face(variables: dict[str, Any]) -> Any:
    steps = variables.get("max_steps")
    if not isinstance(steps, int) or steps <= 0:
        steps = getattr(getattr(variables.get("self"), "state", None), "max_steps", None)
    if not isinstance(steps, int) or steps <= 0:
        return None
    return steps, variables.get("num_train_epochs"), "Hugging Face Trainer state.max_steps"


def _keras(variables: dict[str, Any]) -> Any:
    epochs = variables.get("epochs")
    iterator = variables.get("epoch_iterator")
    per_epoch = variables.get("steps_per_epoch") or getattr(iterator, "num_batches", None)
    if not isinstance(epochs, int) or not per_epoch:
        return None
    return epochs * int(per_epoch), epochs, "Keras fit(epochs) x batches"


# Packages, the function that loops, and how (steps, epochs, source) are read from its variables.
_LOOPS: tuple[tuple[Any, str, Any], ...] = (
    (("lightning", "pytorch_lightning"), "advance", _lightning),
    ("transformers", "_inner_training_loop", _hugging_face),
    ("keras", "fit", _keras),
)
