"""Stored figures as tables: the README's, and errors by hardware for the documentation.

Every protocol has one line of the same form: rows, mean / median / p90 of our error, what the
intervals cover, the simpler rules that come nearest (on the same rows), and how the form was
chosen. What else a protocol is known by is named in ``SHOWN`` and stands in lines below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from advisor.lab import score
from advisor.lab.score.stored import Stored
from advisor.machines.devices import suite_device

Kind = Literal["error", "coverage", "ratio", "count"]
BEGIN: Final = "<!-- figures:begin -->"
END: Final = "<!-- figures:end -->"
FORMS: Final = {
    "chosen with these rows in sight": "seen",
    "nested": "nested",
    "none chosen": "none",
}
MOST_RULES: Final = 2  # simpler rules shown a line
_SHOWN_STATISTICS: Final = ("mape_fraction", "median_ape_fraction")
# Protocol -> what it asks, in the order of the table.
QUESTIONS: Final = {
    "typed": "what people type, asked of the command, its source table left out",
    "gpu": "a job known by its runs elsewhere, on a GPU type that was left out",
    "gpu-mlperf": "MLPerf's jobs by their runs elsewhere, on an accelerator that was left out",
    "job": "a network by its steps on other GPUs, on one that only other networks were on",
    "layers": "a described transformer layer, its GPU and model left out",
    "described": "a model that was only described, asked as a user asks, its GPU left out",
    "neusight": "NeuSight's suite: described models, their GPU left out",
    "recorded": "image networks recorded on a processor, on a GPU that was left out",
    "instance": "a described network with one run on a T4, on a V100 and a K80 never seen",
    "series": "a run from its first minute",
    "cluster": "several nodes from each alone",
    "scaling": "more than four GPUs from at most four",
    "scaling-nominal": "the same from one GPU and the links as sold, the cluster left out",
    "series-mlperf": "MLPerf's larger systems from one run on the smallest of their series",
    "layouts": "a transformer's step as its user types it, its source table left out",
    "mixed": "a transformer's step over unlike machines, its table left out",
    "pipeline": "a transformer on more than 16 GPUs after own runs on fewer, 10 Gb/s between them",
    "finetune": "a fine-tuning step, asked as a user asks",
    "blackwell": "a transformer's step on Blackwell, its table left out",
    "memory": "memory of the fullest device as it was read, on held-out sources",
    "mixtures": "a step of a mixture of experts, its model left out",
    "stacks": "a step by PyTorch-native software of a release, on held-out sources",
    "colocation": "what two jobs keep of their rates on one GPU, the pair left out",
    "campaigns": "GPU-hours of whole training runs, their family left out",
    "own": "our own small runs, the program left out",
    "minutes": "our own runs of a minute from a partial run of 4 %, the program left out",
    "thesis": "cost and time on a random split, as the thesis judged them",
    "ranking": "the cheapest configuration for an unseen job: its cost over the best, less 1",
    "spot": "when a job on spot machines ends",
    "spot-plan": "a job's bill on spot machines by a deadline, over the least possible, less 1",
    "availability": "a job on chosen nodes of a shared cluster, on days not seen",
    "failures": "what saves, restarts and faults cost",
    "queue": "completion on a shared cluster, against Tiresias' simulator",
}
_RULE_ALONE: Final = "always the same, at least twice as large after a failure"
# Protocol -> (label, where in the record, kind) of what is shown besides.
SHOWN: Final[Mapping[str, Sequence[tuple[str, tuple[str, ...], Kind]]]] = {
    "typed": (
        ("lines answered", ("figures", "answered_fraction"), "coverage"),
        ("verdicts right", ("figures", "verdicts_right_fraction"), "coverage"),
        ("of verdicts", ("figures", "verdicts"), "count"),
        ("memory, mean", ("groups", "memory", "mape_fraction"), "error"),
        ("memory, median", ("groups", "memory", "median_ape_fraction"), "error"),
        ("asked of one machine, median", ("groups", "asked of one machine", "median_ape_fraction"),
         "error"),
        ("of several, whose network nobody types, median",
         ("groups", "asked of machines", "median_ape_fraction"), "error"),
        ("lines of public threads, median", ("groups", "from threads", "median_ape_fraction"),
         "error"),
    ),
    "gpu": (
        ("fp16, median", ("figures", "fp16 median APE"), "error"),
        ("fp32, median", ("figures", "fp32 median APE"), "error"),
        ("fp16, chip family left out, median",
         ("figures", "fp16 chip family left out, median APE"), "error"),
        ("fp32, chip family left out, median",
         ("figures", "fp32 chip family left out, median APE"), "error"),
        ("GPUs whose chip no other card has, median",
         ("figures", "GPUs without a sibling: median APE"), "error"),
        ("coverage on the worst GPU", ("figures", "worst GPU's coverage"), "coverage"),
    ),
    "layers": (
        ("GPU and model left out, fp16, median",
         ("figures", "fp16 GPU and model unseen, median APE"), "error"),
        ("GPU and model left out, fp32, median",
         ("figures", "fp32 GPU and model unseen, median APE"), "error"),
    ),
    "instance": (
        ("V100, mean", ("groups", "V100-SXM2-16GB", "mape_fraction"), "error"),
        ("K80, mean", ("groups", "K80", "mape_fraction"), "error"),
    ),
    "job": (
        ("PROFET, median", ("groups", "PROFET", "median_ape_fraction"), "error"),
        ("trainpred, median", ("groups", "trainpred", "median_ape_fraction"), "error"),
        ("other jobs unknown, median",
         ("groups", "other jobs unknown", "median_ape_fraction"), "error"),
    ),
    "series-mlperf": (
        ("up to twice the size, median", ("groups", "size x 1 to 2", "median_ape_fraction"),
         "error"),
        ("8 to 32 times, median", ("groups", "size x 8 to 32", "median_ape_fraction"), "error"),
    ),
    "mixed": (
        ("rank correlation of a job's layouts",
         ("figures", "rank correlation of a job's layouts, mean"), "ratio"),
        ("regret of the layout chosen", ("figures", "regret of the layout chosen, mean"), "error"),
    ),
    "pipeline": (
        ("GPT-1.5B, mean", ("groups", "gpt-1.5b", "mape_fraction"), "error"),
        ("BERT, mean", ("groups", "bert", "mape_fraction"), "error"),
    ),
    "layouts": (
        ("refused as not fitting although it ran",
         ("figures", "plain: refused as not fitting although it ran"), "error"),
        ("half-width of the interval in ln",
         ("figures", "plain, 90% interval, half-width"), "ratio"),
        ("told the stack, mean", ("figures", "told the stack, MAPE"), "error"),
        ("told the stack, median", ("figures", "told the stack, median error"), "error"),
        ("told the stack, in 90 % interval",
         ("figures", "told the stack, 90% interval, coverage"), "coverage"),
        ("A100, mean of tables", ("figures", "A100 plain, mean of tables, MAPE"), "error"),
        ("A100 told the stack, mean of tables",
         ("figures", "A100 told the stack, mean of tables, MAPE"), "error"),
        ("A100, constant efficiency, mean of tables",
         ("figures", "A100 constant efficiency, mean of tables, MAPE"), "error"),
        ("H100, mean of tables", ("figures", "H100 plain, mean of tables, MAPE"), "error"),
        ("H100 told the stack, mean of tables",
         ("figures", "H100 told the stack, mean of tables, MAPE"), "error"),
        ("H100, constant efficiency, mean of tables",
         ("figures", "H100 constant efficiency, mean of tables, MAPE"), "error"),
        ("V100, mean of tables", ("figures", "V100 plain, mean of tables, MAPE"), "error"),
        ("V100, constant efficiency, mean of tables",
         ("figures", "V100 constant efficiency, mean of tables, MAPE"), "error"),
        ("Calculon's tables, ours, mean of tables",
         ("figures", "tables that Calculon has, mean of tables, ours"), "error"),
        ("Calculon as published, mean of tables",
         ("figures", "tables that Calculon has, mean of tables, Calculon"), "error"),
        ("after three runs of one's own, mean gain of tables",
         ("figures", "after three rows: mean gain of tables"), "error"),
        ("least gain of a table", ("figures", "after three rows: least gain of a table"),
         "error"),
    ),
    "scaling": (
        ("T4 over TCP, mean", ("figures", "aws: ours"), "error"),
        ("2080Ti over TCP, mean", ("figures", "rtx: ours"), "error"),
        ("A100, mean", ("figures", "dgx-ext: ours"), "error"),
        ("beyond three times the largest known size, mean",
         ("figures", "beyond 3 times the largest known size: MAPE"), "error"),
        ("interval there",
         ("figures", "beyond 3 times the largest known size: 90 % interval covers"), "coverage"),
    ),
    "scaling-nominal": (
        ("T4 over TCP, mean", ("figures", "aws: ours"), "error"),
        ("2080Ti over TCP, mean", ("figures", "rtx: ours"), "error"),
        ("A100, mean", ("figures", "dgx-ext: ours"), "error"),
        ("constants fitted on these rows too, mean",
         ("figures", "pooled: in sample (constants as shipped, fitted on these rows), MAPE"),
         "error"),
        ("interval of jobs that loading does not bound",
         ("figures", "90 % interval covers, loading aside"), "coverage"),
    ),
    "memory": (
        ("pre-training, mean of sources",
         ("figures", "pre-training, mean of sources, MAPE"), "error"),
        ("fine-tuning, mean of sources",
         ("figures", "fine-tuning, mean of sources, MAPE"), "error"),
        ("failures found", ("figures", "the product's rule: failures found"), "count"),
        ("of failures", ("figures", "failures"), "count"),
        ("of what ran, said to fit",
         ("figures", "the product's rule: said to fit of what ran"), "coverage"),
        ("nothing kept free: failures found", ("figures", "at 100%: failures found"), "count"),
    ),
    "colocation": (
        ("the two jobs in no other pair, mean", ("figures", "the two jobs in no other pair, MAPE"),
         "error"),
        ("half of the other pairs known, mean",
         ("figures", "50% of the other pairs known, MAPE"), "error"),
        ("a quarter known, mean", ("figures", "25% of the other pairs known, MAPE"), "error"),
        ("interval there", ("figures", "25% of the other pairs known, coverage"), "coverage"),
    ),
    "availability": tuple(
        (f"4 workers, {hours} h, {way}: mean hours",
         ("figures", f"4 workers, {hours} h, {way}: mean h"), "ratio")
        for hours in (3, 12)
        for way in ("best on days before", "freest by forecast", "freest now",
                    "groups and swaps", "learned policy", "any nodes")
    ),
    "spot-plan": (
        ("deadlines missed", ("figures", "deadlines missed"), "count"),
        ("of replays", ("figures", "replays"), "count"),
        ("saved on notice, bill over the least",
         ("figures", "saved on notice: bill over least, mean"), "ratio"),
    ),
    "ranking": tuple(
        (f"{suite}, {who}", ("figures", f"{suite}, {who}: cost over best"), "ratio")
        for suite in ("scout", "ibm", "trainpred")
        for who in ("ours", "always the same", _RULE_ALONE)
    ),
}  # fmt: skip
# Protocols whose groups are devices of one suite -> what the column is called.
BY_HARDWARE: Final = {
    "gpu": "known job",
    "gpu-mlperf": "MLPerf job",
    "layers": "transformer layer",
    "neusight": "described model",
}


def shown_values(record: Mapping[str, Any]) -> Iterator[tuple[str, Kind, float]]:
    """Yield label, kind and value of what a protocol's record is known by besides its errors."""
    for label, place, kind in SHOWN.get(record["protocol"], ()):
        value = _at(record, place)
        if value is not None:
            yield label, kind, value


def _at(record: Mapping[str, Any], place: tuple[str, ...]) -> float | None:
    if place[0] == "groups":
        found = [g for g in record["groups"] if g["group"] == place[1]]
        return float(found[0][place[2]]) if found else None
    value = record[place[0]].get(place[1])
    return None if value is None else float(value)


# Protocol -> what brings the measurements without which it cannot run.
NEEDS: Final = {
    "gpu": "advisor data fetch lambda --from COPY",
    "scaling": "advisor data fetch sia",
    "scaling-nominal": "advisor data fetch sia",
    "spot": "advisor data fetch spot",
    "spot-plan": "advisor data fetch spot",
    "mixed": "advisor validate mixed --data COPY",
}


def readme_table(
    stored: Mapping[str, Stored], fetched: Mapping[str, Stored] = MappingProxyType({})
) -> str:
    """Return the lines between the README's markers; ``fetched`` is the second column."""
    lines = [
        "| question (protocol of `advisor validate`) | rows | ours, %: mean / median / p90 | "
        "in 90 % interval | blind, %: mean / median | "
        "nearest simpler rules, same rows, %: mean / median | form | day | "
        "with what `advisor data fetch` brings, %: mean / median / p90 (rows) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        _line(stored.get(name), fetched.get(name), name)
        for name in QUESTIONS
        if name in stored or name in fetched
    ]
    rows = sum(one.record["rows"] for one in stored.values())
    lines += [
        "",
        f"{len(stored)} protocols, {rows:,} rows that ship with the package, as do the constants. "
        "**Bold: a simpler rule errs less than we do.** "
        "Blind: every folder of constants that has a row of the scored group, fitted again "
        "without it; below is which, and what people chose with these rows in sight. "
        "*In sample* names the constants that saw these rows and were not fitted again. "
        "Form says how the model was chosen. *Seen*: we looked at these rows while choosing it, "
        "so expect larger errors on new data. *Nested*: chosen without them. "
        "*None*: nothing was chosen. "
        "†: no verb asks this model, or only a part of it.",
        "",
        "Besides:",
        "",
    ]
    for name in QUESTIONS:
        one = stored.get(name) or fetched.get(name)
        if one is not None and (told := list(shown_values(one.record))):
            values = "; ".join(f"{label} {_value(kind, value)}" for label, kind, value in told)
            more = "" if name in stored else " (with what was fetched)"
            lines.append(f"- `{name}`{more}: {values}")
    return "\n".join([*lines, "", *_blind_lines([*stored.values(), *fetched.values()])])


def _blind_lines(every: Sequence[Stored]) -> list[str]:
    """Return what was fitted again without the scored groups, and what saw them all the same."""
    again: dict[str, dict[str, None]] = {}
    seen: dict[str, dict[str, None]] = {}
    for one in every:
        blind = one.record.get("blind") or {}
        is_fitted = bool(blind.get("changed"))
        for what in blind.get("changed", ()):
            again.setdefault(what, {})[one.protocol] = None
        in_sample = () if is_fitted else score.load(one.protocol).fitted_on  # the table says it
        for what in blind["still_seen"] if is_fitted else one.record["seen"]:
            if what not in in_sample:
                seen.setdefault(what, {})[one.protocol] = None
    found = []
    for title, told in (
        ("For the blind figures these are fitted again without the scored group:", again),
        ("People chose these with the rows in sight, and no command chooses them again. Protocols "
         "without a blind figure stand here too: but for what the table calls in sample, all that "
         "they fit leaves the scored group out.", seen),
    ):  # fmt: skip
        names = {what: ", ".join(f"`{name}`" for name in of) for what, of in told.items()}
        found += [title, "", *(f"- {what}: {of}" for what, of in names.items()), ""]
    return found[:-1]


def _line(own: Stored | None, more: Stored | None, name: str) -> str:
    """Return a line of the table; without shipped figures it says what brings the data."""
    one = own or more
    assert one is not None
    record = one.record
    overall = record["overall"]
    ours = _three(record)
    second = "" if more is None else f"{_three(more.record)} ({more.record['rows']:,})"
    covers = "" if overall["coverage"] is None else f"{100 * overall['coverage']:.0f} %"
    if one.protocol == "spot" and covers:
        covers += " (of 80 % intervals)"
    mark = " †" if "no verb asks" in record["scores"] else ""
    rows = f"{record['rows']:,}"
    if own is None:  # what stands beside it is of the second column, too
        rows, ours = "", f"not here: `{NEEDS[name]}`"
    cells = [f"{QUESTIONS[name]} (`{name}`){mark}", rows, ours, covers,
             _blind(record, is_here=own is not None),
             "; ".join(_rules(record)), FORMS[record["form"]], one.day, second]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _blind(record: Mapping[str, Any], *, is_here: bool) -> str:
    """Return the scores without what was fitted on the rows, or what of it is left in them.

    What was never declared as fitted to scored rows is fitted without the scored group.
    """
    blind, protocol = record.get("blind"), score.load(record["protocol"])
    if blind and blind["changed"]:
        return " / ".join(_percent(blind["overall"][k]) for k in _SHOWN_STATISTICS)
    if protocol.blind is not None and not is_here:
        return f"not here: with the data, `advisor validate {protocol.name} --blind`"
    fitted = "; ".join(protocol.fitted_on)
    if fitted and protocol.blind is not None:
        return f"in sample: {fitted} (`advisor validate {protocol.name} --blind` fits it again)"
    return f"in sample: {fitted}" if fitted else "nothing fitted on it"


def _three(record: Mapping[str, Any]) -> str:
    keys = ("mape_fraction", "median_ape_fraction", "p90_ape_fraction")
    return " / ".join(_percent(record["overall"][key]) for key in keys)


def _rules(record: Mapping[str, Any]) -> list[str]:
    """Return the simpler rules that come nearest: those that win, the best by mean, by median."""
    rules = record["baselines"]
    if not rules:
        return []
    lost = [
        name for name, theirs in rules.items()
        if any(theirs[key] < theirs["ours"][key] for key in _SHOWN_STATISTICS)
    ]  # fmt: skip
    best = [min(rules, key=lambda n: rules[n][key]) for key in _SHOWN_STATISTICS]
    # Of several that win, those that win by most.
    lost.sort(key=lambda n: rules[n]["mape_fraction"] / rules[n]["ours"]["mape_fraction"])
    nearest = dict.fromkeys([*lost[:MOST_RULES], *best])
    return [_rule(name, rules[name], record) for name in list(nearest)[:MOST_RULES]]


def _rule(name: str, theirs: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    ours = theirs["ours"]
    values = [
        f"**{_percent(theirs[k])}**" if theirs[k] < ours[k] else _percent(theirs[k])
        for k in _SHOWN_STATISTICS
    ]
    told = f"{name} {' / '.join(values)}"
    if ours["rows"] != record["rows"]:
        own = " / ".join(_percent(ours[k]) for k in _SHOWN_STATISTICS)
        told += f" ({ours['rows']:,} rows; ours there {own})"
    return told


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}" if fraction < 10 else f"{100 * fraction:,.0f}"


def _value(kind: Kind, value: float) -> str:
    if kind == "count":
        return f"{value:.0f}"
    return f"{value:.2f}" if kind == "ratio" else f"{_percent(value)} %"


def hardware_table(
    stored: Mapping[str, Stored], fetched: Mapping[str, Stored] = MappingProxyType({})
) -> str:
    """Return the page of errors by accelerator: median error and rows of each protocol.

    A protocol that only ``fetched`` has (what `advisor data fetch` brings) is labelled so.
    """
    second = {name for name in fetched if name not in stored}
    stored = {**fetched, **stored}
    columns = {name: title for name, title in BY_HARDWARE.items() if name in stored}
    cells: dict[str, dict[str, str]] = {}
    for name in columns:
        for group in stored[name].record["groups"]:
            device = suite_device(group["group"])
            label = device.name if device is not None else group["group"]
            told = f"{_percent(group['median_ape_fraction'])} ({group['rows']})"
            before = cells.setdefault(label, {}).get(name)
            cells[label][name] = told if before is None else f"{before}, {told}"
    heads = [
        f"{title} (`{name}`{', with fetched data' if name in second else ''})"
        for name, title in columns.items()
    ]
    lines = [
        "<!-- written by `make figures`: do not edit -->",
        "",
        "Median error in per cent, and in brackets the rows it is of. Each accelerator was left "
        "out of everything that is fitted for its line; where a cell is empty, nobody has "
        "published such measurements of it that are here.",
        "",
        f"| accelerator | {' | '.join(heads)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for label in sorted(cells, key=str.lower):
        row = [cells[label].get(name, "") for name in columns]
        lines.append(f"| {label} | {' | '.join(row)} |")
    days = ", ".join(f"`{name}` {stored[name].day}" for name in columns)
    return "\n".join(
        [*lines, "", f"Run on: {days}. The commands: `advisor validate PROTOCOL`.", ""]
    )


def between_markers(page: str, content: str) -> str:
    """Return a page with its generated part replaced.

    Raises ValueError if the page has no markers, or more than one pair.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN} and {END} once, in this order")
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    return f"{head}{BEGIN}\n{content}\n{END}{tail}"
