"""Results of ``advisor simulate`` as text: each function takes the record of ``--json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from advisor.quantities import digits, hours_text, percent_text, seconds_text, usd_text
from advisor.records import left_out_note
from advisor.words import hours_words, interval_text

# ------------------------------------------------------------------------------------------
# The user's own shared cluster under the list of what could be rented, as text.


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
        parts.append(
            Text(
                f"note: {percent_text(beyond)} of the insertions ended after the trace did, on "
                "an emptier "
                "cluster than they would have met"
            )
        )
    console.print(Group(*parts))


def own_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record["own_cluster"]`` in the words of the tables, for pages."""
    return {
        "line": _cluster_line(record),
        "ways": [
            {
                "devices": _devices(way["devices"]),
                "computing": list(hours_words(way["duration_h"])),
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
    when = f"{digits(saved)} h earlier" if saved > 0 else f"{digits(-saved)} h later"
    return (
        f"{when} (earlier in {percent_text(rent['earlier_probability'])}), "
        f"{usd_text(abs(rent['extra_cost_usd']))} "
        + ("more" if rent["extra_cost_usd"] >= 0 else "less")
    )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _cluster_line(record: Mapping[str, Any]) -> str:
    cluster, trace = record["cluster"], record["trace"]
    recorded = trace["recorded_mean_delay_h"]
    left_out = left_out_note(trace["left_out"])
    return (
        f"your cluster: {cluster['nodes']} x {cluster['devices_per_node']} "
        f"{cluster['accelerator']}, {cluster['policy']}; {trace['source']}: {trace['jobs']} jobs"
        + (f" ({left_out})" if left_out else "")
        + f", load {trace['load_fraction']:.2f}; its jobs waited "
        f"{trace['simulated_mean_delay_h']:.2f} h on average as simulated"
        + (" (not recorded)" if recorded is None else f", {recorded:.2f} h as recorded")
    )


def _table(ways: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("devices", justify="right")
    table.add_column(
        f"computing ({percent_text(ways[0]['duration_h']['coverage'])})", justify="right"
    )
    table.add_column("waits (10-90 %)", justify="right")
    table.add_column("done after (10-90 %)", justify="right")
    has_deadline = ways[0]["miss_probability"] is not None
    if has_deadline:
        table.add_column("late", justify="right")
    for way in ways:
        cells = [
            str(way["devices"]),
            interval_text(hours_words(way["duration_h"])),
            _spread(way["delay_h"]),
            _spread(way["completion_h"]),
        ]
        if has_deadline:
            cells.append(percent_text(way["miss_probability"]))
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _spread(levels: Mapping[str, float]) -> str:
    low, middle, high = (f"{levels[p]:.2f}" for p in ("p10", "p50", "p90"))
    return f"{middle} h ({low}-{high})"


def verdict(rent: Mapping[str, Any]) -> str:
    """Say for which worth of an hour renting is right; ``rent`` is a ``RentOrWait`` as record."""
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


_HOPELESS = 100  # a job that takes so many times its work is not waited for


def _simulation_table(*columns: str) -> Table:
    """Return a table whose first column is words and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _between(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return "-"
    low, middle, high = (
        "never" if value[p] is None else f"{value[p]:.2f}" for p in ("p10", "p50", "p90")
    )
    return f"{middle} ({low}-{high})"


def spot(record: Mapping[str, Any]) -> list[Text | Table]:
    """List every way of running the job, on demand first."""
    job = record["job"]
    table = _simulation_table("way", "finish h (10-90 %)", "cost USD (10-90 %)", "late")
    for way in record["ways"]:
        late = way["miss_probability"]
        table.add_row(
            way["name"],
            _between(way["finish_h"]),
            _between(way["cost_usd"]),
            "" if late is None else f"{100 * late:.0f} %",
        )
    head = (
        f"{seconds_text(job['work_s'])} of work on {job['nodes']} spot node(s); "
        f"{record['trace']}, "
        f"{record['days']:.1f} days, all nodes up {100 * record['availability_fraction']:.0f} %"
    )
    return [Text(head), table]


def queue(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what the job meets on the shared cluster, and whether to rent."""
    trace, cluster = record["trace"], record["cluster"]
    left_out = left_out_note(trace["left_out"])
    recorded = trace["recorded_mean_delay_h"]
    lines = [
        f"{trace['source']}: {trace['jobs']} jobs"
        + (f" ({left_out})" if left_out else "")
        + f", load {trace['load_fraction']:.2f} of {cluster['nodes']} x "
        f"{cluster['devices_per_node']} devices, {cluster['policy']}",
        f"mean delay of its own jobs: {trace['simulated_mean_delay_h']:.2f} h simulated"
        + ("" if recorded is None else f", {recorded:.2f} h recorded"),
        f"your job, {record['job']['devices']} devices: waits {_between(record['delay_h'])} h, "
        f"done after {_between(record['completion_h'])} h",
    ]
    if (now := record["submitted_now"]) is not None:
        lines.append(
            f"submitted now, {now['running']} running and {now['waiting']} waiting: starts within "
            f"the hour with {100 * now['within_hour_probability']:.0f} %, waits "
            f"{_between(now['delay_h'])} h"
        )
    if record["miss_probability"] is not None:
        lines.append(f"misses the deadline: {100 * record['miss_probability']:.0f} %")
    if record["beyond_trace_fraction"] > 0:
        lines.append(
            f"note: {100 * record['beyond_trace_fraction']:.0f} % ended after the trace did, "
            "on an emptier cluster than they would have met"
        )
    rent = record["rent_or_wait"]
    if rent is not None:
        lines.append(
            f"{_difference(rent)} (earlier in "
            f"{100 * rent['earlier_probability']:.0f} %): {verdict(rent)}"
        )
    parts: list[Text | Table] = [Text("\n".join(lines))]
    return [*parts, *_policies(record["policies"], cluster["policy"])]


def _policies(rows: Sequence[Mapping[str, Any]], own: str) -> list[Text | Table]:
    """Set all policies side by side on the trace's own jobs."""
    if not rows:
        return []
    table = _simulation_table(
        "policy", "mean completion h", "mean delay h", "p90 delay h", f"by {own}"
    )
    for row in rows:
        table.add_row(
            row["policy"], f"{row['mean_completion_h']:.2f}", f"{row['mean_delay_h']:.2f}",
            f"{row['p90_delay_h']:.2f}", f"{row['completion_factor']:.2f}",
        )  # fmt: skip
    by_name = {row["policy"]: row for row in rows}
    fifo, las = by_name["fifo"], by_name["las-2d"]
    gain = fifo["mean_completion_h"] / las["mean_completion_h"]
    said = f"2D-LAS completes the trace's jobs {gain:.2f} times as fast as FIFO on average"
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
        f"{job['workers']} workers, {hours_text(job['work_h'])} on whole nodes; "
        f"{record['trace']}: {len(record['nodes'])} nodes, {record['days']:.1f} days of {slot}"
    )
    pick = (
        f"nodes: {', '.join(chosen['nodes'])} ({chosen['name']}); expected "
        f"{hours_text(chosen['expected_h'])}, 19 of 20 futures within "
        f"{hours_text(chosen['p95_h'])}; {100 * chosen['straggler_loss_fraction']:.0f} % of the "
        "next step is waiting for the slowest; all have "
        f"{percent_text(record['need_fraction'])} of their "
        f"node in {percent_text(chosen['enough_probability'])} of the slots"
    )
    table = _simulation_table(
        "way of choosing", "expected h", "enough", "past jobs: mean h", "median", "p90"
    )
    for way in record["ways"]:
        mark = " *" if way is chosen else ""
        table.add_row(
            way["name"] + mark, f"{way['expected_h']:.1f}",
            percent_text(way["enough_probability"]),
            *_past_cells(way["past"]),
        )  # fmt: skip
    ways = {way["name"] for way in record["ways"]}
    for name, past in record["past"].items():
        if name not in ways:
            table.add_row(name, "", "", *_past_cells(past))
    alike = "; ".join(
        f"{', '.join(one['nodes'])} ({100 * one['free_mean']:.0f} % free)"
        for one in record["groups"]
    )
    judged = next(iter(record["past"].values()), None)
    note = (
        "the record is too short to judge the ways of choosing on it"
        if judged is None
        else f"past jobs: {judged['jobs']} arrivals on parts of the record, with what the other "
        f"parts told{_kept_policy(record)}"
    )
    return [Text(head), Text(pick), table, Text(note), Text(f"like nodes: {alike}")]


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
            f"; the node share that suffices was put at {percent_text(true['said'])} and was "
            f"{percent_text(true['was'])}"
        )
    return said


def _past_cells(past: Mapping[str, float] | None) -> tuple[str, str, str]:
    if past is None:
        return "-", "-", "-"
    return f"{past['mean_h']:.1f}", f"{past['median_h']:.1f}", f"{past['p90_h']:.1f}"


def elastic(record: Mapping[str, Any]) -> list[Text | Table]:
    """Set the best fixed number of workers beside the best schedule."""
    table = _simulation_table("", "hours", "USD", "resizes", "workers (batch) by phase")
    table.columns[-1].justify = "left"
    plans = [("fixed", record["fixed"]), ("elastic", record["elastic"])]
    if record["constant"] != record["fixed"]:
        plans.insert(0, ("fixed, one batch", record["constant"]))
    if record["on_machines"] is not None:
        plans += [("machines, fixed", record["on_machines"]["fixed"]),
                  ("machines, elastic", record["on_machines"]["elastic"])]  # fmt: skip
    for name, plan in plans:
        if plan is None:
            table.add_row(name, "-", "-", "-", "no fixed number of workers meets the limit")
            continue
        shown: list[str] = []
        for count, batch in zip(plan["workers"], plan["batches"], strict=True):
            part = f"{count} ({batch:g})"
            if not shown or shown[-1] != part:
                shown.append(part)
        table.add_row(
            name, f"{plan['time_h']:.2f}", f"{plan['cost_usd']:.2f}", f"{plan['resizes']}",
            " > ".join(shown),
        )  # fmt: skip
    parts: list[Text | Table] = [table]
    if record["source"] != "given":
        parts[:0] = [Text(_taken(record)), Text(_noise(record))]
    if record["containers"]:
        parts.insert(0, Text(record["containers"]))
    if record["saving_fraction"] is not None:
        parts.append(Text(_saved_words(record)))
    return parts


def _saved_words(record: Mapping[str, Any]) -> str:
    """Say what coming and going saves, apart from what a growing batch does."""
    text = f"saved by elastic workers: {100 * record['saving_fraction']:.1f} % of the fixed bill"
    by_batch = record["batch_saving_fraction"]
    if by_batch is not None and by_batch > 0.0005:
        text += f"; by the batch of each phase, on fixed workers: {100 * by_batch:.1f} %"
    return text


def _taken(record: Mapping[str, Any]) -> str:
    """Say which figures were taken from a recording."""
    scaling, batch = record["scaling"], record["batch"]
    steps = ", ".join(map(seconds_text, record["step_s"]))
    return (
        f"{record['source']}: {record['phases']} phases of {record['samples_per_phase']:,.0f} "
        f"samples, batch {batch:g}; a step on {', '.join(map(str, scaling['workers']))} workers "
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
    table = _simulation_table(
        "devices", "failures", "checkpoint every", "adds", "with a second path", ""
    )
    table.columns[-1].justify = "left"
    for row in record["scales"]:
        plain, second = row["plain"], row["second_path"]
        table.add_row(
            f"{row['devices']:,}" + (" (asked)" if row["is_asked"] else ""),
            "-" if plain["expected_failures"] is None else f"{plain['expected_failures']:.3g}",
            seconds_text(plain["checkpoint_interval_s"]) if job["saves_checkpoints"] else "-",
            _added(plain),
            _added(second),
            "negligible" if plain["is_negligible"] else "",
        )
    save = "no saves"
    if job["saves_checkpoints"]:
        save = f"a save of {seconds_text(job['checkpoint_s'])}"
    head = (
        f"{hours_text(job['work_h'])} of work, {save}, a restart of "
        f"{seconds_text(job['restart_s'])}; {record['failures_per_device_h']:.3g} failures "
        f"per device and hour ({record['source']})"
    )
    return [Text(head), table]


def _added(way: Mapping[str, Any]) -> str:
    overhead = way["overhead_fraction"]
    if overhead is None:
        return "never ends"
    return f"{100 * overhead:.2f} %" if overhead < _HOPELESS else f"> {_HOPELESS} times"


def peers(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say how fast the peers are together, and how much of their sum that is."""
    rate, hours = record["samples_per_s"], record["training_time_h"]
    link = record["slowest_link_gbit_per_s"]
    over = "at one site" if link is None else f"over links of {1e3 * link:.0f} Mbit/s"
    lines = [
        f"{record['peers']} peers {over}, averaging every {record['target_batch']:,.0f} samples; "
        f"known: {record['known']}",
        f"together {rate['value']:.4g} samples/s ({rate['low']:.4g}-{rate['high']:.4g}), "
        f"{percent_text(record['share_of_the_sum'])} of their sum",
    ]
    if hours is not None:
        bounds = f"{hours_text(hours['low'])}-{hours_text(hours['high'])}"
        lines.append(f"whole job {hours_text(hours['value'])} ({bounds})")
    return [Text(line) for line in lines]


def aggregation(record: Mapping[str, Any]) -> list[Text | Table]:
    """Say what sharing saves, and what each job's step exchanges in each way."""
    table = Table(box=None, pad_edge=False)
    table.add_column("job", overflow="fold")
    for head in ("step", "of a core", "all-reduce", "own core", "shared", "slower"):
        table.add_column(head, justify="right")
    for job in record["jobs"]:
        table.add_row(
            Text(job["name"]),
            seconds_text(job["step_s"]),
            percent_text(job["demand_cores"], 1),
            *(seconds_text(job[way]) for way in ("all_reduce_s", "dedicated_s", "shared_s")),
            percent_text(job["loss_fraction"], 1),
        )
    cores, own = record["cores"], record["dedicated_cores"]
    head = (
        f"{len(record['jobs'])} jobs of {record['workers']} machines need {cores} aggregating "
        f"{'core' if cores == 1 else 'cores'} instead of {own}: "
        f"{percent_text(record['saved_fraction'])} "
        f"saved, at most {percent_text(record['most_saved_fraction'])} of equal jobs that "
        "never wait"
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
    table = _simulation_table(
        "policy", "cores", "GiB", "unused", "unused GiB", "throttled", "slower", "kills",
        "all done", "USD/h",
    )  # fmt: skip
    for one in record["policies"]:
        hours = sum(job["length_s"] for job in record["jobs"]) / 3600.0
        table.add_row(
            one["name"] + (" *" if one["name"] == record["chosen"] else ""),
            digits(one["reserved_cores"]), digits(one["reserved_gib"]),
            digits(one["slack_core_h"] / hours), digits(one["slack_gib_h"] / hours),
            percent_text(one["throttled_fraction"]), percent_text(one["slowdown"] - 1, 1),
            str(one["kills"]),
            "never" if one["done_s"] is None else seconds_text(one["done_s"]),
            f"{one['usd_per_h']:.3g}",
        )  # fmt: skip
    table.columns[0].no_wrap = True
    shared = "given" if pool["is_given"] else "the recorded peaks, and 50 MiB a job"
    head = (
        f"{len(record['jobs'])} recorded job(s) on {digits(pool['cores'])} cores and "
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
            f"{percent_text(record['saved_fraction'])} less than the "
            "peaks"
        )
    foot = (
        "Cores and GiB are reserved on average, unused is that less what is used (a job's mean); "
        "all done is when all have ended that begin together, those with limits of their own as "
        "soon as these fit. KRR sets cores aside and throttles nobody."
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
