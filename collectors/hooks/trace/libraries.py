"""What the hooks know of training libraries, a row each: their loops, and the stack that they are.

A new library is a row of ``LIBRARIES``. Python 3.8, standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any


class TrainingLibrary:
    """A training library.

    Attributes
    ----------
    packages : tuple of str
        Its modules, by what their names begin with.
    loop : str
        The function that loops over the training; empty where it does not say how long that is.
    length : callable
        Returns (steps, epochs, source) by that function's variables; None where they do not say.
        Steps may be None: those of the loader in so many epochs.
    is_counted : bool
        Whether its own loops may repeat steps. Others loop over groups of parameters or hooks, or
        say the length themselves.
    stack : str
        The training stack that a step inside its loop runs in, of ``planners.core.STACKS``; empty
        for none.
    trainer : str
        The module whose loop means that stack; each of its packages by default.
    spreads : mapping of str to str
        Names in a script's source of what trains on several devices, and the stack that each alone
        means; empty for none.
    """

    def __init__(
        self, *packages: str, loop: str = "", length: Callable[[Any], Any] | None = None,
        is_counted: bool = False, stack: str = "", trainer: str = "",
        spreads: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self.packages = packages
        self.loop, self.length, self.is_counted = loop, length, is_counted
        self.stack, self.spreads = stack, spreads
        self.trainers = (trainer,) if trainer else packages


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


# What wraps another comes before it: a step's stack is the first of these that is met.
LIBRARIES = (
    TrainingLibrary("torchtitan", is_counted=True, stack="torchtitan"),
    TrainingLibrary("nemo", "megatron.bridge", is_counted=True, stack="nemo"),
    TrainingLibrary("megatron", is_counted=True, stack="megatron-core"),
    TrainingLibrary("composer", is_counted=True, stack="llm-foundry"),
    TrainingLibrary("torchtune", is_counted=True, stack="torchtune"),
    TrainingLibrary("unsloth", "unsloth_zoo", "unsloth_compiled_cache", stack="unsloth"),
    TrainingLibrary("trl", stack="trl", trainer="trl.trainer", spreads={"SFTTrainer": ""}),
    TrainingLibrary(
        "transformers", loop="_inner_training_loop", length=_hugging_face, stack="trainer",
        trainer="transformers.trainer", spreads={"Trainer": ""},
    ),
    TrainingLibrary("deepspeed", stack="deepspeed", spreads={"deepspeed": ""}),
    TrainingLibrary(
        "lightning", "pytorch_lightning", loop="advance", length=_lightning,
        spreads={"Fabric": "", "LightningModule": "", "Trainer": ""},
    ),
    TrainingLibrary("keras", loop="fit", length=_keras),
    TrainingLibrary("ultralytics", loop="_do_train", length=lambda variables: (
        None, variables["self"].epochs, "Ultralytics trainer.epochs")),
    TrainingLibrary("accelerate", spreads={"Accelerator": ""}),
    TrainingLibrary("torch", spreads={
        "DataParallel": "", "DistributedDataParallel": "ddp", "FSDP": "fsdp",
        "FullyShardedDataParallel": "fsdp", "fully_shard": "fsdp", "init_process_group": "",
    }),
    TrainingLibrary("apex", "bitsandbytes", "pluggy", "_pytest"),  # of hooks and parameters
)  # fmt: skip
# What a script's source names -> how its loss is computed, or when it updates: words of options.
# Liger's and torchtune's chunks, Apple's kernel, Unsloth's; LOMO and PyTorch's hooks.
_CHUNKED, _FUSED, _EAGER = ("loss", "chunked"), ("loss", "fused"), ("loss", "eager")
_IN_BACKWARD = ("optimizer_in_backward", "yes")
NAMED = {
    "AutoLigerKernelForCausalLM": _CHUNKED, "LigerFusedLinearCrossEntropyLoss": _CHUNKED,
    "LinearCrossEntropyLoss": _CHUNKED, "CEWithChunkedOutputLoss": _CHUNKED,
    "linear_cross_entropy": _CHUNKED, "unsloth_fused_ce_loss": _CHUNKED,
    "LigerCrossEntropyLoss": _FUSED, "fast_cross_entropy_loss": _FUSED,
    "OptimizerInBackwardWrapper": _IN_BACKWARD, "register_optim_in_bwd_hooks": _IN_BACKWARD,
    "register_post_accumulate_grad_hook": _IN_BACKWARD, "Lomo": _IN_BACKWARD,
    "AdaLomo": _IN_BACKWARD,
}  # fmt: skip
_LIGER = "apply_liger_kernel_to_"
# (argument, value), of a call or of the command line -> the same.
GIVEN = {
    ("use_liger_kernel", "true"): _CHUNKED, ("loss_type", "chunked_nll"): _CHUNKED,
    ("loss_type", "nll"): _EAGER, ("optimizer_in_bwd", "true"): _IN_BACKWARD,
    ("early_step_in_backward", "true"): _IN_BACKWARD, ("optim", "lomo"): _IN_BACKWARD,
    ("optim", "adalomo"): _IN_BACKWARD, ("optim", "galore_adamw_layerwise"): _IN_BACKWARD,
}  # fmt: skip


def word_of(name: str) -> tuple[str, str] | None:
    """Return what a name in the source says of the loss or the update, if it does."""
    return NAMED.get(name) or (_CHUNKED if name.startswith(_LIGER) else None)


SPREADS = {name: stack for one in LIBRARIES for name, stack in one.spreads.items()}
NOT_COUNTED = [package for one in LIBRARIES if not one.is_counted for package in one.packages]


def stated_length(frame: FrameType) -> dict[str, Any] | None:
    """Return a library's word on the length if ``frame`` is its training loop, else None."""
    module = str(frame.f_globals.get("__name__", ""))
    for one in LIBRARIES:
        if frame.f_code.co_name == one.loop and module.startswith(one.packages):
            found = one.length and one.length(frame.f_locals)
            named = zip(("steps", "epochs", "source"), found or ())
            return dict(named, confidence="certain") if found else None
    return None


def stack_over(frame: FrameType | None) -> str:
    """Return the training stack whose loop a step runs in, by its packages; empty for none."""
    seen = set()
    while frame is not None:
        seen.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    for one in LIBRARIES:
        for package in one.trainers if one.stack else ():
            if any(name == package or name.startswith(package + ".") for name in seen):
                return one.stack
    return ""
