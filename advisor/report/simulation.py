"""Results of ``advisor simulate`` as text: each function takes the record of ``--json``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from advisor.collectors.errors import counted
from advisor.planners.systems import ASSUMED_NOISE
from advisor.quantities import (
    digits,
    hours_interval,
    hours_spread,
    hours_text,
    percent_text,
    seconds_text,
    usd_text,
)
from advisor.records import left_out_note
from advisor.words import interval_text, pasteable, wrapped


def show_simulation(record: Mapping[str, Any], console: Console) -> None:
    """Print ``record["own_cluster"]`` of a comparison: what the job meets there, rent or wait."""
    ways = record["ways"]
    parts: list[RenderableType] = [Text(f"\n{_cluster_line(record)}"), _table(ways)]
    for way in ways:
        parts.append(
            Text(f"\nrent or wait, compared with {_devices(way['devices'])} of your own cluster:")
        )
        parts.append(_rents(way["rent_or_wait"]))
    beyond = max(way["beyond_trace_fraction"] for way in ways)
    if beyond > 0:
        parts.append(Text(_beyond(beyond)))
    console.print(Group(*(_fitted(one, console.width) for one in parts)))


def show_simulated(verb: str, record: Mapping[str, Any], console: Console) -> None:
    """Print the record of a verb of ``advisor simulate``."""
    parts = SIMULATIONS[verb](record)
    console.print(Group(*(_fitted(one, console.width) for one in parts)))


def _fitted(part: RenderableType, width: int) -> RenderableType:
    """Return a text with its lines broken between words, and not before a unit."""
    if not isinstance(part, Text):
        return part
    lines = [
        [line] if len(line) <= width or line.startswith(" ") else wrapped(line, width)
        for line in part.plain.split("\n")
    ]
    return Text("\n".join(one for broken in lines for one in broken))


def _beyond(fraction: float) -> str:
    return (
        f"note: {percent_text(fraction)} of the insertions ended after the trace did, on an "
        "emptier cluster than they would have met"
    )


def own_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record["own_cluster"]`` in the words of the tables, for pages."""
    return {
        "line": _cluster_line(record),
        "ways": [
            {
                "devices": _devices(way["devices"]),
                "computing": list(hours_interval(way["duration_h"])),
                "waits": _spread(way["delay_h"]),
                "done": _spread(way["completion_h"]),
                "rents": [
                    {"rank": rent["rank"], "saves": saved_words(rent), "verdict": verdict(rent)}
                    for rent in way["rent_or_wait"]
                ],
            }
            for way in record["ways"]
        ],
    }


def saved_words(rent: Mapping[str, Any]) -> str:
    """Say how much earlier a rented candidate is done, and what it costs more."""
    saved = rent["saved_h"]
    when = f"{hours_text(abs(saved))} {'earlier' if saved > 0 else 'later'}"
    return (
        f"{when} (earlier in {percent_text(rent['earlier_probability'])} of cases), "
        f"{usd_text(abs(rent['extra_cost_usd']))} "
        + ("more" if rent["extra_cost_usd"] >= 0 else "less")
    )


def _load(trace: Mapping[str, Any]) -> str:
    """Return how busy the trace's jobs keep the cluster; unknown where all came at once."""
    share = trace["load_fraction"]
    return "unknown" if share is None else f"{share:.2f}"


def _devices(count: int) -> str:
    return counted(count, "device")


def _cluster_line(record: Mapping[str, Any]) -> str:
    cluster, trace = record["cluster"], record["trace"]
    recorded = trace["recorded_mean_delay_h"]
    left_out = left_out_note(trace["left_out"])
    return (
        f"your cluster: {cluster['nodes']} x {cluster['devices_per_node']} "
        f"{cluster['accelerator']}, {cluster['policy']}; {trace['source']}: "
        f"{counted(trace['jobs'], 'job')}"
        + (f" ({left_out})" if left_out else "")
        + f", load {_load(trace)}; its jobs waited "
        f"{_wait_text(trace['simulated_mean_delay_h'])} on average as simulated"
        + (" (not recorded)" if recorded is None else f", {_wait_text(recorded)} as recorded")
    )


def _table(ways: list[Mapping[str, Any]]) -> Table:
    coverage = percent_text(ways[0]["duration_h"]["coverage"])
    columns: dict[str, Cell] = {
        "devices": lambda way: str(way["devices"]),
        f"computing ({coverage})": lambda way: interval_text(hours_interval(way["duration_h"])),
        "waits (10-90 %)": lambda way: _spread(way["delay_h"]),
        "done after (10-90 %)": lambda way: _spread(way["completion_h"]),
        "late": lambda way: _late(way["miss_probability"]),
    }
    if ways[0]["miss_probability"] is None:
        del columns["late"]
    table = _simulation_table(columns, ways)
    table.columns[0].justify = "right"
    return table


def _late(probability: float | None) -> str:
    return "" if probability is None else percent_text(probability)


def _spread(levels: Mapping[str, float | None] | None) -> str:
    """Return the median of hours with the 10th and 90th percentile: ``"46.3 h (32.1-47.8)"``."""
    return "-" if levels is None else hours_spread(levels["p50"], levels["p10"], levels["p90"])


def _wait_text(hours: float) -> str:
    """Return a wait, which may be none at all."""
    return hours_text(hours) if hours else "0 h"


def _spread_usd(levels: Mapping[str, float | None] | None) -> str:
    """Return the median of a cost and its percentiles: ``"$40.65 (30.59-84.04)"``."""
    if levels is None:
        return "-"
    middle, low, high = (
        "never" if levels[p] is None else usd_text(levels[p] or 0.0) for p in ("p50", "p10", "p90")
    )
    return f"{middle} ({low.removeprefix('$')}-{high.removeprefix('$')})"


def verdict(rent: Mapping[str, Any]) -> str:
    """Say for which worth of an hour renting is right; ``rent`` is of ``rent_or_wait``."""
    saved, extra = rent["saved_h"], rent["extra_cost_usd"]
    if saved > 0:
        if extra <= 0:
            return "rent: earlier at no extra cost"
        return f"rent if an hour is worth more than {usd_text(rent['break_even_usd_per_h'])}"
    if extra < 0 and saved < 0:
        return f"rent if an hour is worth less than {usd_text(extra / saved)}"
    return "wait: your cluster is not slower"


def _rents(rents: list[Mapping[str, Any]]) -> Table:
    """One line a candidate of the list: what renting saves, what for, and the verdict."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for rent in rents:
        table.add_row(str(rent["rank"]), saved_words(rent), verdict(rent))
    return table


# From a row of a record to what a column shows of it.
Cell = Callable[[Mapping[str, Any]], str]
_HOPELESS = 100  # a job that takes so many times its work is not waited for


def _simulation_table(
    columns: Mapping[str, Cell], rows: Iterable[Mapping[str, Any]] = ()
) -> Table:
    """Return a table whose first column is words and the others numbers, a line a row."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell(row)) for cell in columns.values()))
    return table


def spot(record: Mapping[str, Any]) -> list[Text | Table]:
    """List every way of running the job, on demand first."""
    job = record["job"]
    columns: dict[str, Cell] = {
        "way": itemgetter("name"),
        "finish (10-90 %)": lambda way: _spread(way["finish_h"]),
        "cost (10-90 %)": lambda way: _spread_usd(way["cost_usd"]),
        "late": lambda way: _late(way["miss_probability"]),
    }
    head = (
        f"{seconds_text(job['work_s'])} of work on {counted(job['nodes'], 'spot node')}; "
        f"{record['trace']} of {digits(record['days'])} days, in which all nodes were up "
        f"{percent_text(record['availability_fraction'])} of the time"
    )
    return [Text(head), _simulation_table(columns, record["ways"])]


def queue(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what the job meets on the shared cluster, and whether to rent."""
    trace, cluster = record["trace"], record["cluster"]
    left_out = left_out_note(trace["left_out"])
    recorded = trace["recorded_mean_delay_h"]
    lines = [
        f"{trace['source']}: {counted(trace['jobs'], 'job')}"
        + (f" ({left_out})" if left_out else "")
        + f", load {_load(trace)} on {cluster['nodes']} x "
        f"{cluster['devices_per_node']} devices, {cluster['policy']}",
        f"mean wait of its own jobs: {_wait_text(trace['simulated_mean_delay_h'])} simulated"
        + ("" if recorded is None else f", {_wait_text(recorded)} recorded"),
        f"your job on {_devices(record['job']['devices'])}, median (10-90 %): waits "
        f"{_spread(record['delay_h'])}, is done after {_spread(record['completion_h'])}",
    ]
    if (now := record["submitted_now"]) is not None:
        lines.append(
            f"submitted now, beside {now['running']} running and {now['waiting']} waiting: starts "
            f"within the hour in {percent_text(now['within_hour_probability'])} of cases, waits "
            f"{_spread(now['delay_h'])}"
        )
    if record["miss_probability"] is not None:
        lines.append(f"misses the deadline in {percent_text(record['miss_probability'])} of cases")
    if record["beyond_trace_fraction"] > 0:
        lines.append(_beyond(record["beyond_trace_fraction"]))
    rent = record["rent_or_wait"]
    if rent is not None:
        lines.append(
            f"{_difference(rent)} (earlier in {percent_text(rent['earlier_probability'])} of "
            f"cases): {verdict(rent)}"
        )
    parts: list[Text | Table] = [Text("\n".join(lines))]
    return [*parts, *_policies(record["policies"], cluster["policy"])]


def _policies(rows: Sequence[Mapping[str, Any]], own: str) -> list[Text | Table]:
    """Set all policies side by side on the trace's own jobs."""
    if not rows:
        return []
    columns: dict[str, Cell] = {
        "policy": itemgetter("policy"),
        "mean completion h": lambda row: f"{row['mean_completion_h']:.2f}",
        "mean delay h": lambda row: f"{row['mean_delay_h']:.2f}",
        "p90 delay h": lambda row: f"{row['p90_delay_h']:.2f}",
        f"by {own}": lambda row: f"{row['completion_factor']:.2f}",
    }
    by_name = {row["policy"]: row for row in rows}
    fifo, las = by_name["fifo"], by_name["las-2d"]
    gain = fifo["mean_completion_h"] / las["mean_completion_h"]
    said = f"2D-LAS completes the trace's jobs {gain:.2f} times as fast as FIFO on average"
    table = _simulation_table(columns, rows)
    return [Text(""), Text("the trace's own jobs under every policy"), table, Text(said)]


def _difference(rent: Mapping[str, Any]) -> str:
    """Say what renting costs more or less, and how much earlier or later it ends."""
    extra, saved = rent["extra_cost_usd"], rent["saved_h"]
    return (
        f"renting costs {usd_text(abs(extra))} {'more' if extra >= 0 else 'less'} and ends "
        f"{hours_text(abs(saved))} {'earlier' if saved >= 0 else 'later'}"
    )


def availability(record: Mapping[str, Any]) -> list[Text | Table]:
    """Name the chosen nodes, then every way of choosing with what it brought on past days."""
    job, slot = record["job"], seconds_text(record["slot_s"])
    chosen = next(way for way in record["ways"] if way["name"] == record["chosen"])
    head = (
        f"{counted(job['workers'], 'worker')}, {hours_text(job['work_h'])} on whole nodes; "
        f"{record['trace']}: {counted(len(record['nodes']), 'node')} for {digits(record['days'])} "
        f"days, in slots of {slot}"
    )
    pick = (
        f"nodes: {', '.join(chosen['nodes'])} ({chosen['name']}); expected "
        f"{hours_text(chosen['expected_h'])}, in 19 of 20 cases within "
        f"{hours_text(chosen['p95_h'])}; {percent_text(chosen['straggler_loss_fraction'])} of the "
        "next step waits for the slowest node; in "
        f"{percent_text(chosen['enough_probability'])} of the slots every worker has "
        f"{percent_text(record['need_fraction'])} of its node"
    )
    ways = {way["name"] for way in record["ways"]}
    others = [
        {"name": name, "past": past} for name, past in record["past"].items() if name not in ways
    ]
    columns: dict[str, Cell] = {
        "way of choosing": lambda way: way["name"] + (" *" if way is chosen else ""),
        "expected h": lambda way: f"{way['expected_h']:.1f}" if "nodes" in way else "",
        "enough": lambda way: _late(way.get("enough_probability")),
        "past jobs: mean h": lambda way: _past_hours(way, "mean_h"),
        "median": lambda way: _past_hours(way, "median_h"),
        "p90": lambda way: _past_hours(way, "p90_h"),
    }
    table = _simulation_table(columns, [*record["ways"], *others])
    alike = "; ".join(
        f"{', '.join(one['nodes'])} ({100 * one['free_mean']:.0f} % free)"
        for one in record["groups"]
    )
    judged = next(iter(record["past"].values()), None)
    note = (
        "the record is too short to judge the ways of choosing on it"
        if judged is None
        else f"past jobs: {judged['jobs']} arrivals, each on a part of the record that the ways "
        f"had not seen{_kept_policy(record)}"
    )
    return [Text(head), Text(pick), table, Text(note), Text(f"nodes that are alike: {alike}")]


def _kept_policy(record: Mapping[str, Any]) -> str:
    """Say whether the learned policy is used, or what it loses, and how true "enough" was."""
    means = {way["name"]: way["past"]["mean_h"] for way in record["ways"] if way["past"]}
    learned, chosen = means.get("learned policy"), means[record["chosen"]]
    said = ""
    if record["chosen"] == "learned policy":
        said = "; the learned policy wins there and is used"
    elif learned is not None:
        lost = (
            f"loses {percent_text(learned / chosen - 1, 1)}"
            if learned > chosen
            else "wins nothing"
        )
        said = f"; the learned policy {lost} there and is not used"
    true = record["enough_of_past_jobs"]
    if true is not None:
        said += (
            f"; every worker was expected to have enough of its node in "
            f"{percent_text(true['said'])} of the slots, and had in {percent_text(true['was'])}"
        )
    return said


def _past_hours(way: Mapping[str, Any], name: str) -> str:
    return "-" if way["past"] is None else f"{way['past'][name]:.1f}"


def elastic(record: Mapping[str, Any]) -> list[Text | Table]:
    """Set the best fixed number of workers beside the best schedule."""
    plans = [("fixed", record["fixed"]), ("elastic", record["elastic"])]
    if record["constant"] != record["fixed"]:
        plans.insert(0, ("fixed, one batch", record["constant"]))
    if record["on_machines"] is not None:
        plans += [("machines, fixed", record["on_machines"]["fixed"]),
                  ("machines, elastic", record["on_machines"]["elastic"])]  # fmt: skip

    def by_phase(plan: Mapping[str, Any]) -> str:
        if "workers" not in plan:
            return "no fixed number of workers meets the limit"
        counts = zip(plan["workers"], plan["batches"], strict=True)
        return " > ".join(one for one, _ in groupby(f"{n} ({batch:g})" for n, batch in counts))

    columns: dict[str, Cell] = {
        "": itemgetter("name"),
        "time": lambda plan: hours_text(plan["time_h"]) if "workers" in plan else "-",
        "cost": lambda plan: usd_text(plan["cost_usd"]) if "workers" in plan else "-",
        "resizes": lambda plan: f"{plan.get('resizes', '-')}",
        "workers (batch) by phase": by_phase,
    }
    table = _simulation_table(columns, [{"name": name, **(plan or {})} for name, plan in plans])
    table.columns[-1].justify = "left"
    parts: list[Text | Table] = [table]
    if record["source"] != "given":
        parts[:0] = [Text(_taken(record)), Text(_noise(record))]
    if record["containers"]:
        parts.insert(0, Text(record["containers"]))
    if record["saving_fraction"] is not None:
        parts.append(Text(_saved_words(record)))
    return [
        *parts,
        *(Text(line, overflow="ignore", no_wrap=True) for line in _phase_lines(record)),
    ]


def _phase_lines(record: Mapping[str, Any]) -> Iterable[str]:
    """Say how each phase is started, where workers or batch change."""
    for at, one in enumerate(record["runs"] if len(record["runs"]) > 1 else ()):
        begins = "from the last checkpoint, " if at else ""
        yield (
            f"\n# {begins}{counted(one['steps'], 'step')} of {counted(one['batch'], 'sample')} on "
            f"{counted(one['workers'], 'worker')}, {hours_text(one['time_h'])}"
        )
        for command in one["commands"]:
            yield from pasteable(command, shutil.get_terminal_size().columns)


def _saved_words(record: Mapping[str, Any]) -> str:
    """Say what coming and going saves, apart from what a growing batch does."""
    saved = record["saving_fraction"]
    share = f"{percent_text(saved, 1)} of the fixed bill" if saved >= 0.0005 else "nothing"
    text = f"elastic workers save {share}"
    by_batch = record["batch_saving_fraction"]
    if by_batch is not None and by_batch > 0.0005:
        text += f"; on fixed workers, a batch for each phase saves {percent_text(by_batch, 1)}"
    return text


def _taken(record: Mapping[str, Any]) -> str:
    """Say which figures were taken from a recording."""
    workers, batch = record["scaling"]["workers"], record["batch"]
    steps = ", ".join(map(seconds_text, record["step_s"]))
    return (
        f"{record['source']}: {counted(record['phases'], 'phase')} of "
        f"{counted(record['samples_per_phase'], 'sample')}, batch {digits(batch)}; a step on "
        f"{', '.join(map(str, workers))} worker{'' if workers == [1] else 's'} "
        f"takes {steps}; {usd_text(record['price_usd_per_h'])}/h a worker"
    )


def _noise(record: Mapping[str, Any]) -> str:
    """Say what is known of the gradients, or how to know it."""
    scales = record["noise_scale_samples"]
    if scales[0] is None:
        return (
            "gradient noise scale: unknown, so the batch stays as it is; profile with "
            "--workers 2, or a script that accumulates gradients, or give --noise"
        )
    ends = " to ".join(dict.fromkeys(f"{one:,.0f}" for one in (scales[0], scales[-1])))
    seen = record["noise_scale_recorded"]
    if record["noise_scale_source"] == "assumed":
        return (
            f"gradient noise scale: {ends} samples, {ASSUMED_NOISE}; give --noise where it "
            "is known"
        )
    if seen is None:
        return f"gradient noise scale: {ends} samples, {record['noise_scale_source']}"
    high = "no upper end" if seen["high"] is None else f"{seen['high']:,.0f}"
    return (
        f"gradient noise scale: {ends} samples ({seen['low']:,.0f} to {high}), of {seen['steps']} "
        "recorded steps; it grows while a model trains"
    )


def failures(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what failures add, by scale, without and with a second network path."""
    job = record["job"]

    def every(row: Mapping[str, Any]) -> str:
        seconds = row["plain"]["checkpoint_interval_s"]
        return seconds_text(seconds) if job["saves_checkpoints"] else "-"

    def failed(row: Mapping[str, Any]) -> str:
        count = row["plain"]["expected_failures"]
        return "-" if count is None else f"{count:.3g}"

    columns: dict[str, Cell] = {
        "devices": lambda row: f"{row['devices']:,}" + (" (asked)" if row["is_asked"] else ""),
        "failures": failed,
        "checkpoint every": every,
        "adds": lambda row: _added(row["plain"]),
        "second path": lambda row: _added(row["second_path"]),
        "": lambda row: "negligible" if row["plain"]["is_negligible"] else "",
    }
    table = _simulation_table(columns, record["scales"])
    table.columns[-1].justify = "left"
    save = "no checkpoints"
    if job["saves_checkpoints"]:
        save = f"{seconds_text(job['checkpoint_s'])} to save a checkpoint"
    often = "no device ever fails"
    if record["failures_per_device_h"]:
        often = f"a device fails every {hours_text(1.0 / record['failures_per_device_h'])}"
    head = (
        f"{hours_text(job['work_h'])} of work, {save}, {seconds_text(job['restart_s'])} to "
        f"restart; {often} on average ({record['source']})"
    )
    return [Text(head), table]


def _added(way: Mapping[str, Any]) -> str:
    overhead = way["overhead_fraction"]
    if overhead is None:
        return "never ends"
    return percent_text(overhead, 2) if overhead < _HOPELESS else f"> {_HOPELESS} times"


def peers(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say how fast the peers are together, and how much of their sum that is."""
    rate, hours = record["samples_per_s"], record["training_time_h"]
    link = record["slowest_link_gbit_per_s"]
    over = "at one site" if link is None else f"over links of {1e3 * link:.0f} Mbit/s"
    lines = [
        f"{record['peers']} peers {over}, averaging every {record['target_batch']:,.0f} samples; "
        f"known: {record['known']}",
        f"together {digits(rate['value'])} samples/s "
        f"({digits(rate['low'])}-{digits(rate['high'])}), "
        f"{percent_text(record['share_of_the_sum'])} of their sum",
    ]
    if hours is not None:
        lines.append(f"whole job {interval_text(hours_interval(hours))}")
    return [Text(line) for line in lines]


def aggregation(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what sharing saves, and what each job's step exchanges in each way."""
    columns: dict[str, Cell] = {
        "job": itemgetter("name"),
        "step": lambda job: seconds_text(job["step_s"]),
        "of a core": lambda job: percent_text(job["demand_cores"], 1),
        "all-reduce": lambda job: seconds_text(job["all_reduce_s"]),
        "own core": lambda job: seconds_text(job["dedicated_s"]),
        "shared": lambda job: seconds_text(job["shared_s"]),
        "slower": lambda job: percent_text(job["loss_fraction"], 1),
    }
    table = _simulation_table(columns, record["jobs"])
    table.padding = (0, 1)
    cores, own = record["cores"], record["dedicated_cores"]
    head = (
        f"{len(record['jobs'])} jobs on {record['workers']} machines each need {cores} "
        f"aggregating {'core' if cores == 1 else 'cores'} instead of {own}: "
        f"{percent_text(record['saved_fraction'])} "
        f"saved (at most {percent_text(record['most_saved_fraction'])} with equal jobs that "
        "never wait)"
    )
    foot = (
        "All-reduce needs no aggregating core; the times beside it are to exchange the gradients "
        "of one step. 'slower' is the mean wait for the other jobs over the step, played with the "
        "recorded steps: a job asks again when it has its result."
    )
    return [Text(head), table, Text(foot)]


def limits(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what each way of setting limits reserves, and what to paste of the fixed ones."""
    pool, prices = record["pool"], record["prices"]
    hours = sum(job["length_s"] for job in record["jobs"]) / 3600.0
    columns: dict[str, Cell] = {
        "policy": lambda one: one["name"] + (" *" if one["name"] == record["chosen"] else ""),
        "cores": lambda one: digits(one["reserved_cores"]),
        "GiB": lambda one: digits(one["reserved_gib"]),
        "unused": lambda one: digits(one["slack_core_h"] / hours),
        "unused GiB": lambda one: digits(one["slack_gib_h"] / hours),
        "throttled": lambda one: percent_text(one["throttled_fraction"]),
        "slower": lambda one: percent_text(one["slowdown"] - 1, 1),
        "kills": lambda one: str(one["kills"]),
        "all done": lambda one: "never" if one["done_s"] is None else seconds_text(one["done_s"]),
        "USD/h": lambda one: f"{one['usd_per_h']:.3g}",
    }
    table = _simulation_table(columns, record["policies"])
    table.padding = (0, 1, 0, 0)  # ten columns in eighty
    for one in table.columns:
        one.no_wrap = " " not in str(one.header)
    shared = "given" if pool["is_given"] else "the recorded peaks, and 50 MiB a job"
    head = (
        f"{counted(len(record['jobs']), 'recorded job')} on {digits(pool['cores'])} cores and "
        f"{pool['memory_bytes'] / 2**30:.3g} GiB ({shared}), run again as recorded; a core "
        f"{usd_text(prices['usd_per_core_h'])} and a GiB {usd_text(prices['usd_per_gib_h'])} an "
        f"hour ({prices['source']})"
    )
    if record["chosen"] is None:
        said = "no policy keeps all jobs alive and within 1 % of their time: give a larger --pool"
    else:
        said = (
            f"* {record['chosen']}: the cheapest of those that kill nobody and slow by at most "
            f"{percent_text(record['most_slower_fraction'])}; "
            f"{percent_text(record['saved_fraction'], 1)} less than the "
            "peaks"
        )
    foot = (
        "Cores and GiB are reserved on average, unused is that less what is used (a job's mean); "
        "all done is when all have ended that begin together, those with limits of their own as "
        "soon as these fit. USD/h is of an hour as recorded: what takes longer pays longer. KRR "
        "sets cores aside and throttles nobody."
    )
    short = min(job["length_s"] for job in record["jobs"])
    if short < 300:
        foot += (
            f" In {seconds_text(short)} VPA (every minute) and Autopilot (every 5) show what "
            "they learned from the same run before."
        )
    lines = [Text(f"\nfixed limits to paste for {job['name']}:\n{job['paste']}")
             for job in {job["name"]: job for job in record["jobs"]}.values()]  # fmt: skip
    return [Text(head), table, Text(said), Text(foot), *lines]


# What each verb of ``advisor simulate`` shows of its record.
SIMULATIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], list[Text | Table]]]] = {
    one.__name__: one
    for one in (spot, queue, availability, elastic, failures, peers, aggregation, limits)
}
