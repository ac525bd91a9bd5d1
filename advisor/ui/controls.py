"""Controls of the page, and the question that a posted change becomes.

What names a job, a file or a folder is said on the command line alone: nothing that a browser
posts reaches a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.ask import ENTRIES, Question, command_line, project_file
from advisor.errors import UsageError
from advisor.quantities import share_text

# Title of a group, then its controls: name in ``ENTRIES`` and label. The first group is open.
GROUPS: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("Limits", {
        "budget": "Budget", "deadline": "Deadline", "max_nodes": "Most machines",
        "cloud": "Providers", "spot": "Spot prices too", "gpus": "GPUs", "region": "Regions",
    }),
    ("More constraints", {
        "max_price": "Most per machine and hour", "max_hourly": "Most per hour, all machines",
        "mixed": "Unlike machines together", "checkpoints": "Can resume from a checkpoint",
        "known_network": "Only networks that are known", "dated": "Only dated prices",
        "here_price": "An hour of this machine",
    }),
    ("How sure", {
        "confidence": "Keep limits with probability", "coverage": "Probability of intervals",
        "gain": "Least gain of a row", "top": "Most rows",
        "probes": "Suggest short real runs",
    }),
    ("Layout", {
        "tp": "Tensor parallel", "pp": "Pipeline stages", "cp": "Context parallel",
        "ep": "Expert parallel", "zero": "ZeRO stage", "recompute": "Recompute",
        "micro_batch": "Micro-batch", "accumulate": "Accumulated micro-batches",
        "offload": "Offload to host memory", "swap": "Swap layers in",
        "average_every": "Steps between averagings",
    }),
    ("Job and software", {
        "batch": "Global batch", "precision": "Precision", "stack": "Training stack",
        "kernels": "Kernels",
        "attention": "Attention", "optimizer": "Optimizer", "weights": "Weights",
        "lora": "LoRA rank", "base_bits": "Bits of frozen weights", "frozen": "Frozen share",
        "gradients": "Reduced gradients", "overlap": "Overlap gradients",
        "tp_overlap": "Overlap tensor parallelism",
    }),
)  # fmt: skip
NAMES: Final = tuple(name for _, labels in GROUPS for name in labels)
# Shown as sliders: quantities over which a user looks for the point where the answer changes.
_SLIDERS: Final = ("budget", "deadline", "max_nodes")
# Longest text of a control, in characters.
_LONGEST: Final = 500


def controls(providers: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the groups of controls, as the page draws them.

    Returns
    -------
    list of dict
        ``title``, and ``controls``: each ``name``, ``label``, ``help``, ``kind`` (``slider``,
        ``switch``, ``choice``, ``names`` or ``text``), ``unit``, ``choices``, ``default`` (None
        where nothing is assumed) and ``open``: what holds where it is left out, in a word.
    """
    return [
        {"title": title, "controls": [_control(*one, providers) for one in labels.items()]}
        for title, labels in GROUPS
    ]


def _control(name: str, label: str, providers: tuple[str, ...]) -> dict[str, Any]:
    entry = ENTRIES[name]
    unit = entry.kind.metavar
    choices = list(providers) if name == "cloud" else unit.split("|") if "|" in unit else []
    kind = (
        "slider" if name in _SLIDERS
        else "names" if name == "cloud"
        else "switch" if not unit
        else "choice" if choices
        else "text"
    )  # fmt: skip
    return {
        "name": name, "label": label, "help": entry.help, "kind": kind, "choices": choices,
        "unit": {"USD": "USD", "DURATION": "duration", "SHARE": "share"}.get(unit, ""),
        "default": _default(name), "open": _open(name),
    }  # fmt: skip


def _default(name: str) -> Any:
    entry = ENTRIES[name]
    value = getattr(getattr(Question(), entry.part), entry.field)
    return None if value is None else entry.kind.show(value)


def _open(name: str) -> str:
    entry, default = ENTRIES[name], _default(name)
    if isinstance(default, float) and entry.kind.metavar == "SHARE":
        return share_text(default)
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is not None and default != "":
        return f"{default:g}" if isinstance(default, int | float) else str(default)
    open_parts = {"constraints": "any", "layout": "best"}
    return "where needed" if name == "mixed" else open_parts.get(entry.part, "as found")


def changeable(question: Question) -> dict[str, Any]:
    """Return what a question says of the things that the page can change, by name."""
    record = question.to_record()
    return {name: record[name] for name in NAMES if name in record}


def changed(base: Question, posted: Any) -> Question:
    """Return the command line's question with everything the page can change as it says.

    ``posted``: from JSON: names of ``NAMES`` and their values; what is absent or None is left
    open, whatever ``base`` says of it.

    Raises UsageError if a name does not apply, or a value cannot be read.
    """
    if not isinstance(posted, dict):
        raise UsageError("the question is not an object", hint="post names and their values")
    for name, value in posted.items():
        _check_text(name, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                _check_text(one, name)
    said = Question.read(posted, names=NAMES)
    fixed = {k: v for k, v in base.to_record().items() if k not in NAMES}
    return Question.read(fixed | {k: v for k, v in said.to_record().items() if k in NAMES})


def _check_text(text: str, name: str) -> None:
    if len(text) > _LONGEST or not text.isprintable():
        raise UsageError(
            f"{name[:40]!r}: cannot read this text",
            hint=f"{_LONGEST} printable characters at most",
        )


def forms(base: Question, question: Question) -> dict[str, Any]:
    """Return a question in the forms that a page shows and a user keeps.

    Returns
    -------
    dict
        ``answers`` (what the page can change), ``command`` and ``toml``. The command says "no" to
        a switch that the settings in force when the page was started say "yes" to.
    """
    answers = changeable(question)
    before = changeable(base)
    undone = {
        name: _default(name)
        for name in before
        if name not in answers and isinstance(_default(name), bool)
    }
    record = question.to_record()
    return {
        "answers": answers,
        "command": command_line(record | undone),
        "toml": project_file(record),
    }
