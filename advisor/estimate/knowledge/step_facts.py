"""Provenance of the numbers of an estimate: measured, looked up, computed, learned, given."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from advisor.answer import Candidate, Configuration, Fact, to_record
from advisor.catalogue import TableRow, shipped
from advisor.collectors.derive import MOST_RATIO, ratio
from advisor.collectors.errors import counted
from advisor.estimate.answer import network_text
from advisor.estimate.completion import save_of_rows_s
from advisor.estimate.predictor import Predictor, commonly_run
from advisor.estimate.time_columns import TimeColumns
from advisor.estimate.ways.beside import beside_words
from advisor.jobs import NO_LENGTH, Job, setup_words
from advisor.machines import model_day
from advisor.planners.core import GIB, Device, Work
from advisor.planners.layouts import SearchSpace
from advisor.planners.step import (
    measured_flop_per_s,
    peak_flop_per_s,
    runs_as,
    sustained_flop_per_s,
)
from advisor.quantities import digits, percent_text, seconds_text, size_text
from advisor.words import standing_words, sustained_words


class StepFacts:
    """Says of each number that the estimate rests on where it is from."""

    def __init__(
        self, predictor: Predictor, job: Job, columns: TimeColumns, device: Device | None,
        row: TableRow | None = None, space: SearchSpace | None = None,
    ) -> None:  # fmt: skip
        """Take one row of columns; ``row`` is the type of the catalogue that it is of, if any.

        ``space``: the layouts that were asked for, which say how such a job is commonly run.
        """
        self.predictor, self.job, self.columns = predictor, job, columns
        self.space = space
        self.device, self.row = device, row

    def all(self) -> Iterator[Fact]:
        """Yield the facts: measured, given, looked up, computed, learned."""
        yield from self._measured()
        program = self.job.program
        unit, of = "step", counted(self.job.global_batch, "sample")
        if program is not None and program.unit:
            unit, of = program.unit, program.kind
        if self.job.total_source != NO_LENGTH:
            yield Fact(
                what="length", value=f"{counted(self.job.total_steps, unit)} of {of}",
                source="given", note=self.job.total_source,
            )  # fmt: skip
        if self.device is not None and self.job.work is not None:
            yield from self._looked_up(self.device, self.job.work)
            yield from self._computed(self.job.work)
            yield from self._learned(self.device, self.job.work)
            yield from self._corrected()
        if self.row is not None and self.row.cpu_baseline != 1.0:
            yield Fact(
                what="processor time that lasts", value=sustained_words(vars(self.row)),
                source="looked up", note=self.row.cpu_baseline_source,
            )  # fmt: skip
        if self.job.state_bytes:
            yield self._checkpoint()

    def _checkpoint(self) -> Fact:
        """Return what one save takes: its size, the machines' standstill, and at which rate."""
        said = self.job.facts()["checkpoint"]
        source, _, note = said["rate_source"].partition(": ")
        save_s = float(save_of_rows_s(self.job, self.columns)[0])
        return Fact(
            what="checkpoint", source="given" if source == "given" else "assumed",
            value=f"{size_text(said['bytes'])}, {seconds_text(save_s)} at "
            f"{said['bytes_per_s'] / 1e9:.3g} GB/s a machine",
            note=f"{note}; --checkpoint-rate sets it" if source == "assumed" else note,
        )  # fmt: skip

    def _measured(self) -> Iterator[Fact]:
        measured = self.job.measured
        if measured is not None:
            noise = f"{100 * math.expm1(measured.log_sd):.0f} % noise"
            if ratio(measured.log_sd) > MOST_RATIO:
                noise = "too noisy to use"
            yield Fact(
                what="step on the host",
                value=f"{seconds_text(measured.step_s)}, {noise}",
                source="measured",
                note=measured.host.cpu_model,
            )
            if measured.host.benchmark is not None:
                rate = measured.host.benchmark.matmul_flop_per_s
                yield Fact(
                    what="host's products and memory", source="measured",
                    value=f"{rate / 1e9:.0f} Gflop/s, "
                    f"{measured.host.benchmark.copy_bytes_per_s / 1e9:.1f} GB/s",
                    note=f"advisor doctor, {measured.host.benchmark.measured_at[:10]}",
                )  # fmt: skip
        for actual in self.job.actuals:
            yield Fact(
                what=f"step on {actual.count} x {actual.instance_type}",
                value=seconds_text(actual.step_s), source="measured", note="advisor runs actual",
            )  # fmt: skip
        for run in self.job.layout_runs:
            yield Fact(
                what=f"step of {run.name} on {run.machines}", value=f"{run.step_s:.4g} s",
                source="measured", note="advisor runs actual",
            )  # fmt: skip
        factor = self.predictor.calibration_factor(self.job, self.device)
        if factor is not None:
            yield Fact(
                what="calibration", value=f"x {factor:.3g}", source="learned",
                note="what measured steps of this job, and on GPUs of jobs like it, say of "
                "this device: ratio to the bare model",
            )  # fmt: skip

    def _looked_up(self, device: Device, work: Work) -> Iterator[Fact]:
        row = shipped().get(device.name)
        peak_source, as_of = (row.peak_source, row.as_of) if row else ("", "")
        precision = runs_as(device, work.precision)
        peak = peak_flop_per_s(device, precision) or 0.0
        note = "" if precision == work.precision else f"{work.precision} runs as {precision} here"
        processor = device.assumed or (device.vendor if device.kind == "cpu" else "")
        if device.call_s is not None:
            yield Fact(
                what="products, memory and calls of this machine", source="measured",
                value=f"{(measured_flop_per_s(device, precision) or peak) / 1e12:.4g} Tflop/s, "
                f"{device.memory_bytes_per_s / 1e9:,.1f} GB/s, {1e6 * device.call_s:.1f} us",
                note="advisor doctor --device-sheet",
            )  # fmt: skip
            return
        yield Fact(
            what=f"{precision} peak and memory of {device.name}",
            source="assumed" if device.assumed else "looked up",
            value=f"{peak / 1e12:.4g} Tflop/s, {device.memory_bytes_per_s / 1e9:,.0f} GB/s, "
            f"{device.memory_bytes / GIB:.0f} GiB",
            note="; ".join(
                filter(None, (note, processor, peak_source, as_of))
            ),
        )  # fmt: skip

    def _computed(self, work: Work) -> Iterator[Fact]:
        operators = work.operators
        flop = float(operators.flop.sum()) / work.micro_batch
        moved = float(operators.bytes[~operators.is_update].sum()) / work.micro_batch
        is_described = self.job.measured is None and not self.job.is_rehearsed
        traced = "described" if is_described else "traced"
        run = commonly_run(self.job, self.space).work or work
        yield Fact(
            what="training software", value=setup_words(run),
            source="assumed" if is_described else "measured",
            note="; ".join(self.job.assumptions),
        )  # fmt: skip
        yield Fact(
            what="work of a sample", source="computed", value=f"{digits(flop / 1e9)} Gflop, "
            f"{size_text(moved)} moved", note=f"{len(operators)} operators, {traced}",
        )  # fmt: skip
        if said := beside_words(self.columns, 0):
            way, *limits = said
            name, _, meaning = way.partition(": ")
            yield Fact(what=name, value=meaning, source="computed", note="; ".join(limits))
        yield Fact(
            what="memory that a device needs",
            source="computed",
            value=f"{digits(float(self.columns.memory_bytes[0]) / GIB)} GiB",
            note="parameters, gradients, optimizer state, activations, context",
        )

    def _corrected(self) -> Iterator[Fact]:
        """Yield which model corrected the step, and by whose runs."""
        columns, predictor = self.columns, self.predictor
        if columns.is_learned is None or not columns.is_learned[0]:
            return
        fleet, own = predictor.fleet_of(self.job), predictor.own_model
        runs = "" if own is None or self.row is None else own.words(self.job, fleet, columns)
        if runs:
            note = f"{runs}; advisor train --undo forgets them"
        elif predictor.learned is None:
            return
        else:
            note = f"model {predictor.learned.words}"
        yield Fact(
            what="correction of the step", value=f"by {'own' if runs else 'measured'} runs of "
            "jobs of its kind and size", source="learned", note=note,
        )  # fmt: skip

    def _learned(self, device: Device, work: Work) -> Iterator[Fact]:
        constants = self.predictor.constants
        precision = runs_as(device, work.precision)
        rate = sustained_flop_per_s(device, precision, constants.device)
        is_measured = measured_flop_per_s(device, precision) is not None
        yield Fact(
            what="sustained products", value=f"{rate / 1e12:.4g} Tflop/s",
            source=("measured" if device.call_s else "looked up") if is_measured else "learned",
            note=shipped()[device.name].sustained_source if device.name in shipped() else ""
            if is_measured else "limits of arithmetic and power, device model",
        )  # fmt: skip
        yield Fact(
            what="efficiencies of operators, launch costs", value=model_day(),
            source="learned", note="advisor train device-model",
        )  # fmt: skip
        if int(self.columns.dp[0]) > 1:
            yield Fact(
                what="communication",
                value=f"{percent_text(self.columns.shares['network'][0])} of the step",
                source="learned", note="nominal links, advisor train scaling",
            )  # fmt: skip
        assumed = self.columns.assumed_network(0)
        if assumed is not None:
            yield Fact(
                what="network between machines", value=network_text(assumed[0]), source="assumed",
                note="that of machines with these accelerators, or like them; say another: "
                "--cluster MACHINESxGPUSxNAME@RATE",
            )  # fmt: skip


def facts_of(
    predictor: Predictor, job: Job, one: Candidate, *, space: SearchSpace | None = None
) -> tuple[Fact, ...]:
    """Return what a rented candidate rests on; of unlike machines the prices alone.

    ``space`` is the one that it was chosen from.
    """
    return (*_of_step(predictor, job, one, space), *price_facts(one.configuration))


def _of_step(
    predictor: Predictor, job: Job, one: Candidate, space: SearchSpace | None
) -> Iterator[Fact]:
    if len(one.configuration.parts) > 1:
        return
    offer, count = one.configuration.parts[0]
    row = predictor.catalogue.instance_type(offer.instance_type, provider=offer.provider)
    columns = predictor.step_columns(job, np.array([row.index]), np.array([count]), space=space)
    device = predictor.device_of(row.index, job)
    yield from StepFacts(predictor, job, columns, device, row).all()


def price_facts(configuration: Configuration, *, is_lowest: bool = False) -> Iterator[Fact]:
    """Yield the price of every machine that is rented, with its place and its day.

    ``is_lowest``: no other place has it cheaper.
    """
    for offer, count in configuration.parts:
        alone = Configuration(parts=((offer, count),))
        if offer.pricing == "own" or math.isnan(offer.price_usd_per_h):
            continue
        yield Fact(
            what=f"price of {offer.instance_type}", value=f"{offer.price_usd_per_h:.4g} USD/h",
            source="given" if offer.price_kind == "own" else "looked up",
            note=f"{offer.provider} {offer.region}, {'lowest ' if is_lowest else ''}"
            f"{offer.pricing} price; {standing_words({'configuration': to_record(alone)})}",
        )  # fmt: skip
