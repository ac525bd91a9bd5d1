"""The catalogue's records as text for a terminal of any width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Literal

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from advisor.collectors.errors import counted
from advisor.quantities import percent_text, rate_text, size_text
from advisor.words.pieces import WITHOUT_DAY, prices_words, sustained_words

Record = Mapping[str, Any]

# Columns of a terminal that hold the table of offers with a column a fact, and with all facts.
_WIDE = 106
_COMPLETE = 130
_UNCHECKED = "its numbers were typed from memory and never checked"
_TOP_PRICES = 12  # regions shown by ``show`` unless all are asked for


def offers(record: Record, console: Console) -> None:
    """Print the answer to ``list``."""
    rows = record["offers"]
    if rows:
        if console.width < _WIDE:
            console.print(_narrow_offers(rows))
        else:
            console.print(_wide_offers(rows, is_complete=console.width >= _COMPLETE))
    prices = prices_words([{"configuration": [{"price_as_of": row["as_of"]} for row in rows]}])
    said = f"{len(rows):,} of {counted(record['found'], 'offer')}"
    console.print(Text(f"{said}; {prices}" if prices else said), style="dim")
    for name in record["unchecked_accelerators"]:
        console.print(Text(f"{name}: {_UNCHECKED}"), style="dim")


def _wide_offers(rows: Sequence[Record], *, is_complete: bool) -> Table:
    columns: dict[str, Cell] = {
        "provider": itemgetter("provider"), "instance type": itemgetter("instance_type"),
        "region": itemgetter("region"), ">USD/h": _price("price"),
        "pricing": itemgetter("pricing"), "accelerators": accelerators,
        ">vCPU": lambda row: number(row["vcpus"]), ">GiB": lambda row: number(row["memory_gib"]),
    }  # fmt: skip
    if is_complete:
        columns[">Gbit/s"] = lambda row: number(row["network_gbit_per_s"])
        columns["as of"] = _day
    return _table(columns, rows)


def _narrow_offers(rows: Sequence[Record]) -> Table:
    def resources(row: Record) -> str:
        size = f"{number(row['vcpus'])} vCPU, {number(row['memory_gib'])} GiB"
        return accelerators(row) or size

    columns: dict[str, Cell] = {
        "instance type": itemgetter("instance_type"), "~where": _where, ">USD/h": _price("price"),
        "pricing": itemgetter("pricing"), "~resources": resources,
    }  # fmt: skip
    return _table(columns, rows)


def instance_type(record: Record, console: Console, *, all_regions: bool = False) -> None:
    """Print the answer to ``show``."""
    one = record["specification"]
    console.print(Text(f"{one['provider']} {one['name']}", style="bold"))
    console.print(_facts(_specification(one, record)))
    prices = record["prices"]
    shown = prices if all_regions else prices[:_TOP_PRICES]
    if shown:
        console.print(Text("\nprices in USD per hour", style="bold"))
        console.print(_prices(shown))
    if more := len(prices) - len(shown):
        regions = "region" if more == 1 else "regions"
        console.print(Text(f"{more} more {regions}: --all-regions", style="dim"))
    if not prices:
        console.print(Text("no price known"))
    console.print(Text("\nsources", style="bold"))
    console.print(_facts(_sources(record)))


def _specification(one: Record, record: Record) -> Iterable[tuple[str, str]]:
    architecture = f" ({one['cpu_arch']})" if one["cpu_arch"] else ""
    yield "vCPUs", f"{number(one['vcpus'])}{architecture} {one['cpu_model']}".strip()
    if one["core_speed"] is not None:
        yield "core speed", f"{one['core_speed']:,.0f} CoreMark/vCPU ({one['core_speed_source']})"
    if one["cpu_baseline"] != 1.0:
        yield "sustained", sustained_words(one)
    yield "memory", f"{gib(one['memory_bytes'])} GiB"
    if one["local_ssd_bytes"]:
        yield "local SSD", size_text(one["local_ssd_bytes"])
    yield from _accelerator(one, record)
    rates = f"{gbit(one['network_bytes_per_s'])} Gbit/s sustained"
    if one["network_burst_bytes_per_s"] not in (None, one["network_bytes_per_s"]):
        rates += f", {gbit(one['network_burst_bytes_per_s'])} as advertised"
    yield "network", rates + (f", {one['rdma']}" if one["rdma"] else "")


def _accelerator(one: Record, record: Record) -> Iterable[tuple[str, str]]:
    device = record["accelerator"]
    if device is None:
        return
    memory = gib(one["accelerator_memory_bytes"])
    unchecked = "" if device["is_checked"] else f"; {_UNCHECKED}"
    yield (
        "accelerators",
        f"{one['accelerator_count']:g} x {one['accelerator']}, {memory} GiB each{unchecked}",
    )
    peaks = ", ".join(
        f"{name} {device[f'{name}_flop_per_s'] / 1e12:,.0f}"
        for name in ("fp32", "tf32", "bf16", "fp16", "fp8")
        if device[f"{name}_flop_per_s"]
    )
    if peaks:
        yield "dense peaks", f"{peaks} Tflop/s; memory {rate(device['memory_bytes_per_s'])}"
    if device["sustained_bf16_flop_per_s"]:
        yield (
            "measured",
            f"bf16 products {device['sustained_bf16_flop_per_s'] / 1e12:,.0f} Tflop/s",
        )
    nominal = f"{device['link'] or 'no direct link'}, {rate(device['link_bytes_per_s'])} nominal"
    basis = one["intra_node_basis"] or "not measured"
    yield (
        "between them",
        f"{one['intra_node_link'] or 'unknown'}: {rate(one['intra_node_bytes_per_s'])} ({basis}); "
        f"{nominal}",
    )
    seen = "not measured"
    if one["host_device_bytes_per_s"] is not None:
        basis = one["host_device_basis"]
        seen = rate(one["host_device_bytes_per_s"]) + (f" ({basis})" if basis else "")
    yield "host to one", f"{seen}; PCIe {rate(record['nominal_pcie_bytes_per_s'])} nominal"


# Dashes between words, and not those of a region: "scaled-by-us-east-1-change".
_WORDS_OF_STATUS: Final = re.compile(r"-(?!(?:east|west|north|south|central)\w*-\d|\d)")


def _prices(rows: Sequence[Record]) -> Table:
    def status(row: Record) -> str:
        words = [row["status"]] + ([row["listing"]] if row["listing"] != "offered" else [])
        return _WORDS_OF_STATUS.sub(" ", ", ".join(words))

    ways = ["on_demand", "spot", "reserved_1y", "reserved_3y"]
    used = [way for way in ways if any(row[f"{way}_usd_per_h"] is not None for row in rows)]
    columns: dict[str, Cell] = {"region": itemgetter("region")}
    columns |= {f">{way.replace('_', ' ')}": _price(way) for way in used}
    if any(row["interruption"] for row in rows):
        columns[">interrupted"] = lambda row: row["interruption"] or ""
    return _table({**columns, "as of": _day, "~status": status}, rows)


def _sources(record: Record) -> Iterable[tuple[str, str]]:
    one = record["specification"]
    yield "specification", one["source"]
    for name, column in (("processor", "cpu_model_source"), ("sustained", "cpu_baseline_source")):
        if one[column]:
            yield name, one[column]
    if device := record["accelerator"]:
        yield "accelerator", "; ".join(filter(None, [device["source_1"], device["source_2"]]))
    for text in sorted({row["source"] for row in record["prices"]}):
        yield "prices", text
    for text in sorted({one["source"] for one in record["measured_links"]}):
        yield "links", text


def info(record: Record, console: Console) -> None:
    """Print the answer to ``info``."""
    console.print(_facts(_about(record)))

    def age(row: Record) -> str:
        return "?" if row["age_days"] is None else f"{row['age_days']:.0f}"

    columns: dict[str, Cell] = {
        "provider": itemgetter("provider"), ">types": _count("types"),
        ">GPU": _count("accelerated_types"), ">regions": _count("regions"),
        ">on-demand": _count("on_demand_prices"), ">spot": _count("spot_prices"),
        "newest": lambda row: row["newest"] or WITHOUT_DAY, ">days": age,
        ">unpriced": lambda row: _count("types_without_price")(row["holes"]),
    }  # fmt: skip
    console.print(_table(columns, record["providers"]))


# Where the speed of a type's cores is from, in words.
_SPEEDS: Final[Mapping[str, str]] = {
    "other benchmark": "from another benchmark", "same family": "from the same family",
    "same cpu model": "from the same CPU model",
}  # fmt: skip


def _about(record: Record) -> Iterable[tuple[str, str]]:
    yield "snapshot", record["path"] + (" (bundled)" if record["is_bundled"] else "")
    age = WITHOUT_DAY if record["age_days"] is None else f"{record['age_days']:.0f} days ago"
    yield "newest price", f"{record['as_of']}, {age}".removeprefix(", ")
    yield (
        "holds",
        f"{record['types']:,} types, {record['priced_pairs']:,} on-demand prices, "
        f"{record['accelerators']} accelerators",
    )
    ways = sorted(record["core_speed"].items(), key=lambda one: -one[1])
    yield "core speed", ", ".join(f"{count:,} {_SPEEDS.get(way, way)}" for way, count in ways)
    if record["unchecked_accelerators"]:
        yield "unchecked", f"{', '.join(record['unchecked_accelerators'])}: typed from memory"
    if record["overrides"]:
        yield "overrides", record["overrides"]


def other_prices(rows: Sequence[Record], console: Console) -> None:
    """Print prices of storage and outgoing traffic."""
    columns: dict[str, Cell] = {
        "provider": itemgetter("provider"), "region": itemgetter("region"),
        "~item": itemgetter("item"), "~tier": itemgetter("tier"),
        ">USD": lambda row: f"{row['price_usd']:.4g}",
        "unit": lambda row: row["unit"].removeprefix("USD/"), "~as of": itemgetter("as_of"),
    }  # fmt: skip
    table = _table(columns, rows)
    table.columns[-1].min_width = len("2026-11-26")
    console.print(table)


def update(record: Record, console: Console) -> None:
    """Print the answer to ``update``."""

    def notes(row: Record) -> str:
        if row["status"] == "updated":
            return ", ".join(f"{count:,} {what}" for what, count in row["found"].items())
        return str(row["message"]) + (f"\nhint: {row['hint']}" if row["hint"] else "")

    columns: dict[str, Cell] = {
        "source": itemgetter("source"), "": itemgetter("status"), ">types": _count("types"),
        ">prices": _count("prices"), "~": notes,
    }  # fmt: skip
    console.print(_table(columns, record["sources"]))
    console.print(Text(record["message"]))


def difference(record: Record, console: Console, *, top: int) -> None:
    """Print the answer to ``diff``."""
    console.print(Text(f"from {record['old']}\nto   {record['new']}"))
    columns: dict[str, Cell] = {
        "provider": itemgetter("provider"), ">types +": _count("types_added"),
        ">types -": _count("types_removed"), ">prices +": _count("prices_added"),
        ">prices -": _count("prices_removed"), ">changed": _count("prices_changed"),
        ">median change": lambda row: _change(row["median_change_fraction"]),
    }  # fmt: skip
    table = _table(columns, record["providers"])
    console.print(table if record["providers"] else Text("no difference"))
    if changes := record["changes"][:top]:
        columns = {
            "instance type": itemgetter("instance_type"), "~where": _where,
            "pricing": itemgetter("pricing"), ">old": _price("old"), ">new": _price("new"),
            ">change": lambda row: _change(row["change_fraction"]),
        }  # fmt: skip
        console.print(Text("\nlargest changes", style="bold"))
        console.print(_table(columns, changes))


def _change(fraction: float | None) -> str:
    return "" if fraction is None else percent_text(fraction, 1, signed=True)


def usd_per_h(value: float | None) -> str:
    """Return a price with enough digits to tell two apart.

    >>> usd_per_h(0.00417), usd_per_h(0.1664), usd_per_h(21.957642), usd_per_h(113.9328)
    ('0.0042', '0.1664', '21.958', '113.93')
    """
    if value is None:
        return ""
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 100 else f"{value:,.2f}"


def number(value: float | None) -> str:
    """Return a number as short as it is, a question mark where it is unknown."""
    return "?" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def gib(value: float | None) -> str:
    """Return bytes as GiB."""
    return number(None if value is None else value / 2**30)


def gbit(value: float | None) -> str:
    """Return bytes/s as Gbit/s."""
    return number(None if value is None else value * 8 / 1e9)


def rate(value: float | None) -> str:
    """Return bytes/s, or a question mark where they are unknown."""
    return "?" if value is None else rate_text(value)


def accelerators(row: Record) -> str:
    """Return e.g. ``"8 x H100-SXM5-80GB"``; a share of one as a fraction."""
    count = row["accelerators"]
    if not count:
        return ""
    share = f"1/{1 / count:.0f}" if count < 1 else f"{count:g} x"
    return f"{share} {row['accelerator']}"


# From a row of a record to what a column shows of it.
Cell = Callable[[Record], str]


def _table(columns: Mapping[str, Cell], rows: Iterable[Record]) -> Table:
    """Make a table: ``>`` turns a column to the right, ``~`` lets it wrap at spaces."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for header in columns:
        justify: Literal["left", "right"] = "right" if ">" in header else "left"
        wraps = "~" in header
        table.add_column(
            header.strip(">~"), justify=justify, no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(escape(cell(row)) for cell in columns.values()))
    return table


def _count(name: str) -> Cell:
    return lambda row: f"{row[name]:,}"


def _price(name: str) -> Cell:
    return lambda row: usd_per_h(row[f"{name}_usd_per_h"])


def _where(row: Record) -> str:
    return f"{row['provider']} {row['region']}"


def _day(row: Record) -> str:
    return str(row["as_of"] or WITHOUT_DAY)


def _facts(pairs: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(escape(name), escape(value))
    return table


# What each verb of ``advisor catalogue`` shows of its record.
VIEWS: Final[Mapping[str, Callable[..., None]]] = {
    one.__name__: one for one in (offers, instance_type, info, update, difference)
}
