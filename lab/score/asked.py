"""Measured runs of transformers asked as a user asks: this model, on these machines, so laid out.

Three ways. ``step_s`` and ``memory_bytes`` answer by the layout problem that ``recommend`` and
``plan`` search (``ways.model_parallel.on_machine``), and put in what a table knows and no question
can say: the framework's kernels, overlaps and buffers, fp4, and boards that run below the
catalogue's rates (``PUTS_IN``). ``step_s_by_flags`` puts in nothing: the software is the nearest
``TrainingSetup``, schedule and sequence parallelism are the search's own. ``ask`` answers runs
that were written down as flags (``lab.fit.asked``). In the last two a layout that does not fit
by the product's memory rule, or that no released framework accepts, has no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.case import MeasuredLayout
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import STATUSES
from advisor.estimate.ways.model_parallel import on_machine
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.lab.fit.asked import AskedRun
from advisor.lab.fit.layout_rows import LayoutRows, known_part, take_columns
from advisor.machines.fleet import Fleet, lone_fleet, one_type
from advisor.planners.core.arrays import RECOMPUTES, Floats, Layouts, Offload, Shapes
from advisor.planners.core.layout_case import LayoutParameters
from advisor.planners.core.nouns import Device, Recompute
from advisor.planners.core.setup import Kernels, Precision, TrainingSetup, Transformer
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace
from advisor.planners.memory.transformers import MemoryConstants, StageAsked
from advisor.planners.step.describe import transformer_work
from advisor.quantities import REACH_90

PUTS_IN: Final = (
    "the framework's kernels, overlaps and buffers, fp4, and the rates of boards that run below "
    "the catalogue's"
)
# ``planners.core.arrays.PRECISIONS`` -> what a question asks for, which cannot be fp4.
ASKED: Final[tuple[Precision, ...]] = ("fp16", "fp8", "fp8", "tf32")
_FP4: Final = 2


def step_s(rows: LayoutRows, parameters: LayoutParameters) -> Floats:
    """Return the product's step time of every row, with other constants than the shipped [s]."""
    found = np.full(len(rows), np.nan)
    for index, problem in problems(rows):
        layouts = layouts_of(rows, index)
        found[index] = replace(problem, parameters=parameters).times(layouts).step_s
    return found


def memory_bytes(
    rows: LayoutRows, constants: MemoryConstants, stage: StageAsked = "fullest"
) -> Floats:
    """Return the product's memory of every row, with other constants than the shipped [bytes]."""
    found = np.full(len(rows), np.nan)
    for index, problem in problems(rows):
        asked = replace(problem, memory=constants)
        found[index] = asked.used_bytes(layouts_of(rows, index), stage)
    return found


def measured_layouts(rows: LayoutRows, parameters: LayoutParameters) -> list[MeasuredLayout]:
    """Return every row as a user's own run, with these constants of the layout model."""
    found: dict[int, MeasuredLayout] = {}
    for index, problem in problems(rows):
        asked = replace(problem, parameters=parameters)
        for row in index.tolist():
            found[row] = MeasuredLayout(
                problem=asked,
                layout=one_row(rows.layouts, row),
                device=_known(str(rows.gpu[row]))[0].device,
                step_s=float(rows.measured_s[row]),
            )
    return [found[row] for row in range(len(rows))]


def problems(rows: LayoutRows) -> Iterator[tuple[NDArray[np.int64], LayoutProblem]]:
    """Yield the rows that ask for the same model on the same machines, and their problem."""
    parts = (rows.shapes, rows.machines, rows.software)
    full = [np.broadcast_to(getattr(p, f.name), len(rows)) for p in parts for f in fields(p)]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i in range(len(rows)):
        key = (str(rows.gpu[i]), *(column[i].item() for column in full))
        alike.setdefault(key, []).append(i)
    for members in alike.values():
        yield np.array(members), _problem(rows, members[0])


def layouts_of(rows: LayoutRows, index: NDArray[np.int64]) -> Layouts:
    return take_columns(rows.layouts, index)


def _problem(rows: LayoutRows, row: int) -> LayoutProblem:
    """Return the product's layout problem of one row, with what only the table knows."""
    shapes, machines = one_row(rows.shapes, row), one_row(rows.machines, row)
    precision = int(machines.precision)
    work = transformer_work(transformer(shapes), micro_batch=1, precision=ASKED[precision])
    case = predictor().case(
        described_job(work, name=str(rows.row_id[row])), fleet=fleet_of(rows, row)
    )
    problem = on_machine(case, 0).problem
    asked = problem.machines
    return replace(
        problem,
        machines=replace(
            asked,
            flop_per_s=float(machines.flop_per_s),
            memory_bytes_per_s=float(machines.memory_bytes_per_s),
            precision=_FP4 if precision == _FP4 else asked.precision,
        ),
        software=one_row(rows.software, row),
        trained_share=float(shapes.trained_share),
    )


def transformer(shapes: Shapes) -> Transformer:
    return Transformer(
        layers=int(shapes.layers), hidden=int(shapes.hidden), heads=int(shapes.heads),
        kv_heads=int(shapes.kv_heads), ffn=int(shapes.ffn), is_gated=int(shapes.matrices) == 3,
        sequence=int(shapes.sequence), vocabulary=int(shapes.vocabulary),
        experts=int(shapes.experts), experts_per_token=int(shapes.experts_per_token),
        has_tied_embeddings=int(shapes.tables) == 1,
    )  # fmt: skip


def fleet_of(rows: LayoutRows, row: int) -> Fleet:
    """Return one type of machine: that of a row, with the links that its table states."""
    machines = one_row(rows.machines, row)
    return _machine(
        _known(str(rows.gpu[row]))[0],
        per_node=int(machines.devices_per_node),
        intra_bytes_per_s=float(machines.intra_bytes_per_s),
        has_own_links=True,
        network_bytes_per_s=float(machines.network_bytes_per_s),
        domain_machines=int(machines.domain_machines),
    )


def _machine(part: Any, **links: Any) -> Fleet:
    """Return one type of machine whose host never binds, its network with RDMA."""
    return one_type(part.device, is_rdma=True, vcpus=np.inf, core_speed=None,
                    host_memory_bytes=np.inf, **links)  # fmt: skip


def _known(gpu: str) -> Any:
    found = known_part(gpu)
    if found is None:
        raise ValueError(f"rows of an unknown accelerator were read: {gpu}")
    return found


def one_row(columns: Any, row: int) -> Any:
    """Return one row of a record of columns, as Python numbers."""
    return type(columns)(
        **{
            f.name: value[row].item()
            if isinstance(value := getattr(columns, f.name), np.ndarray) and value.ndim
            else value
            for f in fields(columns)
        }
    )


def step_on(asking: Predictor, job: Job, device: Device, count: int = 1) -> tuple[float, float]:
    """Return a job's step on a machine of some devices, and the deviation of its logarithm."""
    row = asking.catalogue.accelerators.get(device.name)
    fleet = lone_fleet(device, count, row)
    found = asking.step_columns(job, np.array([0]), np.array([1]), fleet=fleet)
    return float(found.step_s[0]), float(found.log_sd[0])


@cache
def predictor() -> Predictor:
    """Physics over the packaged catalogue: fits are compared without what was learned since."""
    from advisor.catalogue import Catalogue

    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def predictor_by(parameters: LayoutParameters) -> Predictor:
    """Return the same with other constants of the layout model than the shipped."""
    known = predictor().constants
    layout = replace(known.layout, parameters=parameters)
    constants = replace(known, layout=layout)
    return Predictor(predictor().catalogue, constants=constants, learned=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswers:
    """What the product says of runs, with 90 % intervals; nan where it has no answer."""

    step_s: Floats
    low_s: Floats
    high_s: Floats
    memory_bytes: Floats
    status: NDArray[np.str_]

    @property
    def is_answered(self) -> NDArray[np.bool_]:
        return np.isfinite(self.step_s)


def ask(runs: Sequence[AskedRun], parameters: LayoutParameters) -> RunAnswers:
    """Return the product's answers with other constants of the layout model than the shipped."""
    asking = predictor_by(parameters)
    found = np.array([_answer_run(asking, run) for run in runs])
    step_s, log_sd = found[:, 0], found[:, 1]
    return RunAnswers(
        step_s=step_s,
        low_s=step_s * np.exp(-REACH_90 * log_sd),
        high_s=step_s * np.exp(REACH_90 * log_sd),
        memory_bytes=found[:, 2],
        status=np.array([STATUSES[int(code)] for code in found[:, 3]]),
    )


def _answer_run(asking: Predictor, run: AskedRun) -> tuple[float, float, float, int]:
    work = transformer_work(
        run.transformer, micro_batch=1, precision=run.precision, setup=run.setup
    )
    columns = asking.step_columns(
        described_job(work, name=run.row_id, global_batch=run.layout.global_batch),
        np.array([0]),
        np.array([run.layout.devices // run.per_node]),
        fleet=_fleet(run),
        space=_space(run),
    )
    return (
        float(columns.step_s[0]),
        float(columns.log_sd[0]),
        float(columns.memory_bytes[0]),
        int(columns.status[0]),
    )


def _space(run: AskedRun) -> SearchSpace:
    """Return the space that holds one layout."""
    layout = run.layout
    return SearchSpace(
        tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, micro_batch=layout.micro_batch,
        schedules=(layout.schedule,), zero_stages=(layout.zero_stage,), may_shard_in_nodes=False,
        recomputes=(layout.recompute,), offloads=(),
    )  # fmt: skip


def _fleet(run: AskedRun) -> Fleet:
    part = _known(run.gpu)[0]
    return _machine(
        part,
        per_node=run.per_node,
        intra_bytes_per_s=part.link_bytes_per_s,
        has_own_links=not part.link_name.startswith("pcie"),
        network_bytes_per_s=run.network_bytes_per_s,
    )


# ``planners.core.arrays.FUSIONS`` -> the nearest kernels that a flag names.
_KERNELS: Final[tuple[Kernels, ...]] = ("eager", "fused", "compiled", "fused")
# Adapters of the rows that train nothing else; their rank hardly changes a step.
_RANK: Final = 16


def step_s_by_flags(
    rows: LayoutRows, parameters: LayoutParameters
) -> tuple[Floats, NDArray[np.str_]]:
    """Return the product's answers by flags alone [s], and the status of every row."""
    asking = predictor_by(parameters)
    found, status = np.full(len(rows), np.nan), np.full(len(rows), "", dtype="U32")
    for row in range(len(rows)):
        found[row], status[row] = _answer_row(asking, rows, row)
    return found, status


def _answer_row(asking: Predictor, rows: LayoutRows, row: int) -> tuple[float, str]:
    shapes, layouts = one_row(rows.shapes, row), one_row(rows.layouts, row)
    machines = one_row(rows.machines, row)
    nodes, rest = divmod(int(rows.devices[row]), int(machines.devices_per_node))
    batch = int(layouts.dp * layouts.micro_batch * layouts.accumulation_steps)
    if rest or layouts.micro_batch % 1 or layouts.dp % 1:
        return np.nan, "not whole machines or batches"
    work = transformer_work(
        transformer(shapes), micro_batch=1, precision=ASKED[int(machines.precision)],
        setup=setup_of(one_row(rows.software, row), float(shapes.trained_share)),
    )  # fmt: skip
    columns = asking.step_columns(
        described_job(work, name=str(rows.row_id[row]), global_batch=batch),
        np.array([0]),
        np.array([nodes]),
        fleet=fleet_of(rows, row),
        space=space_of(layouts, is_recompute_stated=bool(rows.is_recompute_stated[row])),
    )
    return float(columns.step_s[0]), STATUSES[int(columns.status[0])]


def setup_of(software: Any, trained_share: float) -> TrainingSetup:
    """Return what flags can say of a table's software."""
    return TrainingSetup(
        kernels=_KERNELS[int(software.fusion)],
        attention="flash" if software.attention else "unfused",
        gradients="bf16" if software.gradient_bytes < 4 else "fp32",
        overlaps=bool(software.overlaps_dp),
        adapter_rank=None if trained_share else _RANK,
    )


def space_of(layouts: Any, *, is_recompute_stated: bool) -> SearchSpace:
    """Return the space that holds one measured layout; what its table leaves open stays open."""
    stated: tuple[Recompute, ...] = (RECOMPUTES[int(layouts.recompute)],)
    offloads: dict[Offload, bool] = {
        "optimizer": bool(layouts.offloads_optimizer),
        "parameters": bool(layouts.offloads_parameters),
    }
    interleaves = layouts.virtual_stages > 1
    return SearchSpace(
        tp=int(layouts.tp),
        pp=int(layouts.pp),
        cp=int(layouts.cp),
        ep=int(layouts.ep),
        micro_batch=int(layouts.micro_batch),
        schedules=("interleaved",) if interleaves else ("1f1b",),
        zero_stages=(int(layouts.zero_stage),),
        recomputes=stated if is_recompute_stated else RECOMPUTES,
        offloads=tuple(name for name, moves in offloads.items() if moves),
    )
