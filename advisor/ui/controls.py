"""Controls of the page, and the question that a posted change or an address becomes.

What names a file or a folder is said on the command line alone: nothing that a browser sends
reaches a path. A team's server (``advisor ui --serve``) also takes a job: one that is described,
or a run of its store by its whole name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from advisor.ask import (
    ENTRIES,
    LIMITS,
    OPTIMIZERS,
    PANELS,
    RENTED,
    STACK_NAMES,
    Question,
    command_line,
    merged,
    project_file,
)
from advisor.errors import UsageError
from advisor.quantities import share_text

# What the page asks, by name in ``ENTRIES``, and how it is labelled; its groups are the panels of
# the command line's help (``PANELS``).
LABELS: Final[Mapping[str, str]] = {
    "budget": "Budget", "deadline": "Deadline", "confidence": "Keep limits with probability",
    "max_price": "Most per machine and hour", "max_hourly": "Most per hour, all machines",
    "here_price": "An hour of this machine", "effort": "Work for one machine",
    "cloud": "Providers", "gpus": "GPUs", "region": "Regions", "max_nodes": "Most machines",
    "spot": "Spot prices too", "reserved": "Your commitment", "dated": "Only dated prices",
    "mixed": "Unlike machines together", "checkpoints": "Can resume from a checkpoint",
    "known_network": "Only networks that are known",
    "batch": "Global batch", "precision": "Precision",
    "tp": "Tensor parallel", "pp": "Pipeline stages", "cp": "Context parallel",
    "ep": "Expert parallel", "etp": "Ranks of one expert",
    "schedule": "Pipeline schedule", "chunks": "Chunks of a stage",
    "zero": "ZeRO stage", "recompute": "Recompute",
    "micro_batch": "Micro-batch", "accumulate": "Accumulated micro-batches",
    "offload": "Offload to host memory", "swap": "Swap layers in",
    "average_every": "Steps between averagings",
    "optimizer_in_backward": "Optimizer in the backward pass",
    "stack": "Training stack", "kernels": "Kernels",
    "attention": "Attention", "optimizer": "Optimizer", "loss": "Loss", "weights": "Weights",
    "lora": "LoRA rank", "lora_targets": "LoRA targets",
    "base_bits": "Bits of frozen weights", "frozen": "Frozen share",
    "gradients": "Reduced gradients", "overlap": "Overlap gradients",
    "tp_overlap": "Overlap tensor parallelism",
    "coverage": "Probability of intervals", "gain": "Least gain of a row", "top": "Most rows",
    "probes": "Suggest short real runs",
}  # fmt: skip
NAMES: Final = tuple(LABELS)
# What a team's server also asks: the job. The first names say which job is meant.
JOB_LABELS: Final[Mapping[str, str]] = {
    "run": "Recorded run", "layers": "Layers", "hidden": "Hidden width", "heads": "Heads",
    "cnn": "Convolutional network", "kv_heads": "Key and value heads", "ffn": "Feed-forward width",
    "gated": "Gated feed-forward", "tied": "Tied embeddings", "vocabulary": "Vocabulary",
    "experts": "Experts",
    "experts_per_token": "Experts per token", "sequence": "Tokens of a sample",
    "tokens": "Tokens in all", "epochs": "Epochs", "total_steps": "Steps",
    "total_samples": "Samples in all", "data": "Data to bring in",
    "data_rate": "Rate of the data", "results": "Results to take out",
    "validation": "Share of validation", "boot": "Boot time", "download": "Weights to download",
}  # fmt: skip
# Groups that stand first, and are open.
_OPEN: Final = (LIMITS, RENTED)
_JOB_NAMES: Final = tuple(JOB_LABELS)
_SAYS_WHICH: Final = frozenset(("run", "layers", "hidden", "heads", "cnn"))
TEAM_NAMES: Final = (*_JOB_NAMES, *NAMES)
_SWITCHES: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
# Shown as sliders: quantities over which a user looks for the point where the answer changes.
_SLIDERS: Final = ("budget", "deadline", "max_nodes")
# Longest text of a control, in characters.
_LONGEST: Final = 500


def controls(
    providers: tuple[str, ...], *, runs: tuple[str, ...] | None = None
) -> list[dict[str, Any]]:
    """Return the groups of controls, as the page draws them.

    ``runs``: names of the recorded runs that a team's page offers; None where the job is fixed.

    Returns
    -------
    list of dict
        ``title``, ``is_open``, and ``controls``: each ``name``, ``label``, ``help``, ``kind``
        (``slider``, ``switch``, ``choice``, ``names`` or ``text``), ``unit``, ``choices``,
        ``default`` (None where nothing is assumed) and ``open``: what holds where it is left out,
        in a word.
    """
    labels = LABELS if runs is None else {**JOB_LABELS, **LABELS}
    groups: dict[str, list[tuple[str, str]]] = {panel: [] for panel in (*_OPEN, *PANELS)}
    for one in labels.items():
        groups[ENTRIES[one[0]].panel].append(one)
    listed = {
        "cloud": list(providers), "run": list(runs or ()),
        "stack": list(STACK_NAMES), "optimizer": list(OPTIMIZERS),
    }  # fmt: skip
    return [
        {"title": title, "is_open": title in _OPEN,
         "controls": [_control(*one, listed) for one in inside]}
        for title, inside in groups.items() if inside
    ]  # fmt: skip


def _control(name: str, label: str, listed: Mapping[str, list[str]]) -> dict[str, Any]:
    entry = ENTRIES[name]
    unit = entry.kind.metavar
    choices = listed.get(name, unit.split("|") if "|" in unit else [])
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


def changeable(question: Question, names: Collection[str] = NAMES) -> dict[str, Any]:
    """Return what a question says of the things that the page can change, by name."""
    record = question.to_record()
    return {name: record[name] for name in names if name in record}


def changed(base: Question, posted: Any, names: Collection[str] = NAMES) -> Question:
    """Return the command line's question with everything the page can change as it says.

    ``posted``: from JSON: some of ``names`` and their values; what is absent or None is left
    open, whatever ``base`` says of it. Where another job is posted, nothing of the command line's
    job is left; where none is, all of it.

    Raises UsageError if a name does not apply, or a value cannot be read.
    """
    if not isinstance(posted, dict):
        raise UsageError("the question is not an object", hint="post names and their values")
    for name, value in posted.items():
        _check_text(name, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                _check_text(one, name)
    said = changeable(Question.read(posted, names=names), names)
    is_other_job = not _SAYS_WHICH.isdisjoint(said)
    kept = {
        name: value
        for name, value in base.to_record().items()
        if name in ENTRIES
        and (name not in names or name in _JOB_NAMES)
        and not (is_other_job and ENTRIES[name].part == "job")
    }
    return Question.read(merged(kept, said))


def read_query(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the names and values of an address's query.

    Raises UsageError if a name stands in it twice, or a switch is neither yes nor no.

    Examples
    --------
    >>> read_query([("budget", "50"), ("spot", "yes"), ("cloud", "")])
    {'budget': '50', 'spot': True}
    """
    found: dict[str, Any] = {}
    for name, text in items:
        if name in found:
            raise UsageError(f"{name[:40]} is given twice", hint="leave one of them out")
        if not text.strip():
            continue
        is_switch = name in ENTRIES and not ENTRIES[name].kind.metavar
        if is_switch and text.lower() not in _SWITCHES:
            raise UsageError(
                f"{name}: cannot read {text[:40]!r} as yes or no", hint="write yes or no"
            )
        found[name] = _SWITCHES[text.lower()] if is_switch else text
    return found


def query(record: Mapping[str, Any]) -> str:
    """Return names and values as an address's query, which ``read_query`` reads."""
    texts = {
        name: ("yes" if value else "no") if isinstance(value, bool)
        else ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in record.items()
    }  # fmt: skip
    return urlencode(texts)


def _check_text(text: str, name: str) -> None:
    if len(text) > _LONGEST or not text.isprintable():
        raise UsageError(
            f"{name[:40]!r}: cannot read this text",
            hint=f"{_LONGEST} printable characters at most",
        )


def forms(base: Question, question: Question, names: Collection[str] = NAMES) -> dict[str, Any]:
    """Return a question in the forms that a page shows and a user keeps.

    Returns
    -------
    dict
        ``answers`` (what the page can change), ``command``, ``toml`` and ``query`` (of a team's
        address). The command says "no" to a switch that the settings in force when the page was
        started say "yes" to.
    """
    answers = changeable(question, names)
    before = changeable(base, names)
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
        "query": query(answers),
    }
