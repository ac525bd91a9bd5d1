"""What makes a job fit, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from advisor.quantities import percent_text, seconds_text, usd_text
from advisor.words.pieces import contents_words, layout_words, machine, place_words, wrapped

Record = Mapping[str, Any]

_GAP: Final = "  "


def fitting_text(record: Record, *, width: int) -> str:
    """Return the record of ``advisor fit --json`` as lines of at most ``width`` columns."""
    lines = wrapped(_verdict(record), width)
    path = [record["plain"], *record["changes"]]
    if len(path) > 1:
        lines += ["", *_table("in this order", path, width)]
    if (end := _end(record)) is not None:
        lines += ["", *wrapped(end, width)]
    if in_stack := [one for one in record["changes"] if one["in_stack"]]:
        lines += ["", "to write"]
        for one in in_stack:
            lines += wrapped(f"{one['words']}:", width, indent="    ", first="  ")
            for said in one["in_stack"]:
                lines += wrapped(said, width, indent="        ", first="    ") or [""]
    if record["alone"]:
        lines += ["", *_table("each alone", [record["plain"], *record["alone"]], width)]
    if record["refused"] and (record["changes"] or not record["fits"]):
        lines += ["", "not possible here"]
        for words, why in record["refused"].items():
            lines += wrapped(f"{words}: {why}", width, indent="    ", first="  ")
    return "\n".join(
        [*lines, "", *(part for one in _also(record) for part in wrapped(one, width))]
    )


def _verdict(record: Record) -> str:
    said = f"{record['job']} on {record['machines']}, {_gib(record['device_memory_gib'])} a device"
    if likely := record["fits_probability"]:
        return f"{said}: fits as asked with {percent_text(likely)} only"
    if not record["fits"]:
        return f"{said}: does not fit as asked"
    return f"{said}: fits as asked, in this layout: {layout_words(record['layout'])}"


def _end(record: Record) -> str | None:
    if not record["changes"] and not record["can_fit"]:
        return "nothing that this stack can change gains memory"
    if record["can_fit"]:
        return None
    return "with all of them it does not fit either"


def _table(title: str, trials: Sequence[Record], width: int) -> list[str]:
    rows = [(title, "GiB", "gained", "step", ""), *_rows(trials)]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = min(sizes[0], width - sum(sizes[1:]) - len(_GAP) * len(sizes[1:]))
    lines = []
    for name, *cells in rows:
        right = [cell.rjust(size) for cell, size in zip(cells[:-1], sizes[1:-1], strict=True)]
        *above, last = wrapped(name, first, indent="    ", first="") or [""]
        lines += [*above, _GAP.join([last.ljust(first), *right, cells[-1]]).rstrip()]
    return lines


def _rows(trials: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for at, one in enumerate(trials):
        slower = percent_text(one["step_factor"] - 1.0, signed=True) if at else ""
        said = (slower, one["asks"], "fits" if one["fits"] else "")
        yield (
            f"  {one['words'] or 'nothing changed'}",
            _size(one["needed_gib"]),
            _size(one["gained_gib"]) if at else "",
            seconds_text(one["step_time_s"]),
            _GAP.join(part for part in said if part),
        )


def _also(record: Record) -> Iterator[str]:
    parts = record["smallest"]
    if not parts:
        yield "no machine of the catalogue holds it as asked"
    else:
        (one,) = parts
        yield (
            f"cheapest machine that holds it as asked: {machine(one)} ({contents_words(one)}), "
            f"{usd_text(one['price_usd_per_h'])} an hour, {place_words(parts)}"
        )
    if record["most_micro_batch"] is not None:
        changed = "with these changes" if record["changes"] else "as asked"
        text = "" if record["most_sequence"] is None else (
            f", or sequences of {record['most_sequence']:,} tokens one by one"
        )  # fmt: skip
        yield f"{changed}, a device holds micro-batches of {record['most_micro_batch']:,}{text}"


def _gib(size: float) -> str:
    return f"{_size(size)} GiB"


def _size(size: float) -> str:
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"
