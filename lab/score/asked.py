"""Measured runs of transformers asked as a user asks: this model, on these machines, so laid out.

``ask_rows`` and ``ask`` type words (``Typed``) and take what ``advisor plan`` prints for them: a
step and its interval. A layout that does not fit by the product's memory rule, or that no released
framework accepts, has no answer. ``step_s`` answers by the layout problem that ``recommend``
and ``plan`` search (``ways.model_parallel.on_machine``), and puts in what a table knows and no
question can say (``PUTS_IN``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue.networks import KnownNetworks
from advisor.catalogue.offer_columns import TypeColumns
from advisor.estimate.case import SPACE
from advisor.estimate.knowledge.layout_model import Asked, LayoutModel
from advisor.estimate.knowledge.own_runs import MeasuredLayout
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import STATUSES
from advisor.estimate.ways.model_parallel import on_machine, search
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.model_facts import restacked
from advisor.lab.fit.asked import AskedRun
from advisor.lab.fit.layout_rows import LayoutRows, known_part, take_columns
from advisor.machines.fleet import lone_machines, one_type, over_assumed_network
from advisor.planners.core.arrays import FUSIONS, RECOMPUTES, Floats, Layouts, Shapes
from advisor.planners.core.layout_case import LayoutParameters
from advisor.planners.core.nouns import Device
from advisor.planners.core.setup import (
    DEFAULT_SETUP,
    Precision,
    TrainingSetup,
    Transformer,
    read_stack,
    stack_facts,
)
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.problem import POSSIBLE, LayoutProblem, SearchSpace
from advisor.planners.step.describe import transformer_work
from advisor.quantities import REACH_90

PUTS_IN: Final = "the framework's kernels, overlaps and buffers"
# Answered by a layout that keeps a part of its state in host memory.
IN_HOST_MEMORY: Final = "ok in host memory"
# ``planners.core.arrays.PRECISIONS`` -> what a question asks for.
ASKED: Final[tuple[Precision, ...]] = ("fp16", "fp8", "fp4", "tf32")


def step_s(rows: LayoutRows, parameters: LayoutParameters) -> Floats:
    """Return the product's step time of every row, with other constants than the shipped [s]."""
    found = np.full(len(rows), np.nan)
    for index, problem in problems(rows):
        layouts = layouts_of(rows, index)
        found[index] = replace(problem, parameters=parameters).times(layouts).step_s
    return found


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


def fleet_of(rows: LayoutRows, row: int) -> TypeColumns:
    """Return one type of machine: that of a row, with the links that its table states."""
    machines = one_row(rows.machines, row)
    return _machine(
        _known(str(rows.gpu[row])),
        per_node=int(machines.devices_per_node),
        intra_bytes_per_s=float(machines.intra_bytes_per_s),
        has_own_links=True,
        network_bytes_per_s=float(machines.network_bytes_per_s),
        domain_machines=int(machines.domain_machines),
    )


def _machine(part: Any, **links: Any) -> TypeColumns:
    """Return one type of machine whose host never binds, its network with RDMA."""
    return one_type(part.device, rdma_share=1.0, vcpus=np.inf, core_speed=None,
                    memory_bytes=np.inf, **links)  # fmt: skip


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
    fleet, machines = lone_machines(device, count, asking.catalogue)
    found = asking.step_columns(job, np.array([0]), np.array([machines]), fleet=fleet)
    return float(found.step_s[0]), float(found.log_sd[0])


@cache
def predictor() -> Predictor:
    """Physics over the packaged catalogue: fits are compared without what was learned since."""
    from advisor.catalogue import Catalogue

    return Predictor(Catalogue.load(with_overrides=False), learned=None)


def predictor_by(layout: LayoutModel) -> Predictor:
    """Return the same with another layout model than the shipped."""
    constants = replace(predictor().constants, layout=layout)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a user types of one run: the words of ``advisor plan``."""

    name: str
    transformer: Transformer
    precision: Precision
    global_batch: int
    setup: Mapping[str, Any]  # of the flags of the training software, those that are given
    space: SearchSpace | None  # of the layout, what is given
    fleet: TypeColumns  # one type of machine
    machines: int


def answers(asking: Predictor, typed: Sequence[Typed]) -> RunAnswers:
    """Return what the product prints for questions: a step and its 90 % interval."""
    found = np.array([_answer(asking, one) for one in typed]).reshape(-1, 5)
    status = np.array([STATUSES[int(code)] for code in found[:, 3]], dtype="U32")
    step_s, log_sd = found[:, 0], found[:, 1]
    return RunAnswers(
        step_s=step_s,
        low_s=step_s * np.exp(-REACH_90 * log_sd),
        high_s=step_s * np.exp(REACH_90 * log_sd),
        memory_bytes=found[:, 2],
        status=np.where(found[:, 4] > 0, IN_HOST_MEMORY, status),
    )


def _job(typed: Typed) -> Job:
    setup = restacked(DEFAULT_SETUP, typed.setup)
    work = transformer_work(
        typed.transformer, micro_batch=1, precision=typed.precision, setup=setup
    )
    return described_job(work, name=typed.name, global_batch=typed.global_batch)


def own_run(asking: Predictor, typed: Typed, step_s: float) -> MeasuredLayout | None:
    """Return a run as its user notes it, in the fastest layout of what is typed.

    That is what ``advisor runs actual`` takes for what it is not told. None where none fits.
    """
    case = asking.case(_job(typed), fleet=typed.fleet, space=typed.space)
    on = on_machine(case, 0)
    best = search(case, on.problem, typed.machines * on.per_node).best
    if best is None:
        return None
    return MeasuredLayout(
        problem=on.problem,
        layout=layout_columns(best.layout),
        device=typed.fleet.devices[0],
        step_s=step_s,
    )


def _answer(asking: Predictor, typed: Typed) -> tuple[float, ...]:
    columns = asking.step_columns(
        _job(typed),
        np.array([0]),
        np.array([typed.machines]),
        fleet=typed.fleet,
        space=typed.space,
    )
    return (
        float(columns.step_s[0]),
        float(columns.log_sd[0]),
        float(columns.memory_bytes[0]),
        int(columns.status[0]),
        float(columns.host_bytes[0]),
    )


# Runs that were written down as flags.


def own_runs(runs: Sequence[AskedRun], model: LayoutModel) -> list[MeasuredLayout]:
    """Return runs as a user's own, told their stack and layout; those that fit."""
    asking = predictor_by(model)
    found = [own_run(asking, _told(run), run.measured_s) for run in runs]
    return [run for run in found if run is not None]


def ask(asking: Predictor, runs: Sequence[AskedRun]) -> RunAnswers:
    """Return a predictor's answers where all is told: software, and the layout that ran."""
    return answers(asking, [_told(run) for run in runs])


def ask_plainly(asking: Predictor, runs: Sequence[AskedRun]) -> RunAnswers:
    """Return a predictor's answers to model, batch, GPUs and what is trained of the model."""
    return answers(asking, [_plain(run) for run in runs])


def ask_mixtures(asking: Predictor, runs: Sequence[AskedRun], *, is_told: bool) -> RunAnswers:
    """Return a predictor's answers to mixtures of experts: degrees and micro-batch are typed.

    Told the stack: its name too, and the chunks of a stage. ZeRO, recomputation and what routers
    do are the product's.
    """
    return answers(asking, [_of_experts(run, is_told=is_told) for run in runs])


def _of_experts(run: AskedRun, *, is_told: bool) -> Typed:
    layout = run.layout
    said = {name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep", "micro_batch")}
    space = replace(SPACE, **said)
    if is_told:
        space = replace(space, schedule=layout.schedule, chunks=layout.virtual_stages)
    return replace(_told(run), setup={"stack": run.stack} if is_told else {}, space=space)


def _told(run: AskedRun) -> Typed:
    named = {one.name: getattr(run.setup, one.name) for one in fields(TrainingSetup)}
    return Typed(
        name=run.row_id, transformer=run.transformer, precision=run.precision,
        global_batch=run.layout.global_batch, setup={**named, "stack": run.stack},
        space=_space(run), fleet=_fleet(run), machines=run.layout.devices // run.per_node,
    )  # fmt: skip


def _plain(run: AskedRun) -> Typed:
    """``--finetune`` and, where they are trained, ``--lora`` and ``--base-bits``."""
    setup: dict[str, Any] = {"stack": "trainer"} if run.stack == "trainer" else {}
    for name in ("adapter_rank", "base_bits"):
        if getattr(run.setup, name) != getattr(DEFAULT_SETUP, name):
            setup[name] = getattr(run.setup, name)
    return replace(_told(run), setup=setup, space=None)


def _space(run: AskedRun) -> SearchSpace:
    """Return the space that holds one layout."""
    layout = run.layout
    return SearchSpace(
        tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, micro_batch=layout.micro_batch,
        schedule=layout.schedule, zero_stages=(layout.zero_stage,), may_shard_in_nodes=False,
        recomputes=(layout.recompute,), offloads=(),
    )  # fmt: skip


def _fleet(run: AskedRun) -> TypeColumns:
    part = _known(run.gpu)
    return _machine(
        part,
        per_node=run.per_node,
        intra_bytes_per_s=part.peer_bytes_per_s,
        has_own_links=not part.link_name.startswith("pcie"),
        network_bytes_per_s=run.network_bytes_per_s,
        domain_machines=run.domain_machines,
    )


# Rows of published tables.

TOLD: Final[Asked] = "told the stack"
OPEN: Final = ", layout open"
MIXTURE: Final = ", mixture"
# Adapters of the rows that train nothing else; their rank hardly changes a step.
_RANK: Final = 16
_MASTER_AND_MOMENTS: Final = 12.0  # AdamW's beside an fp32 copy of the weights [bytes]


def ask_rows(
    rows: LayoutRows, model: LayoutModel, *, how: Asked, states_network: bool = True
) -> RunAnswers:
    """Return the product's answers to rows as users ask, every table left out.

    Plainly: model, batch, precision and machines; the degrees that split the model, where any
    does; the micro-batch, and that adapters are trained. Told the stack: its name too, that it
    does not compile or overlaps tensor parallelism where others do not, and of ZeRO,
    recomputation, chunks of a stage and offload what the table states. Kernels,
    overlap, loss and buffers are the product's in both. Unless ``states_network``, the
    network between machines is the product's, too; and with an open layout the degrees and the
    micro-batch.
    """
    found = np.full((4, len(rows)), np.nan)
    status = np.full(len(rows), "", dtype="U32")
    for table in dict.fromkeys(rows.table):
        asking = predictor_by(model.left_out(str(table), str(table)))
        here = np.flatnonzero(rows.table == table)
        said = ask_some(asking, rows, here, how=how, states_network=states_network)
        found[:, here] = said.step_s, said.low_s, said.high_s, said.memory_bytes
        status[here] = said.status
    return _run_answers(found, status)


def ask_some(
    asking: Predictor, rows: LayoutRows, index: NDArray[np.intp], *, how: Asked,
    states_network: bool = True,
) -> RunAnswers:  # fmt: skip
    """Return a predictor's answers to some of the rows, asked in the same ways."""
    found = np.full((4, index.size), np.nan)
    status = np.full(index.size, "not whole machines or batches", dtype="U32")
    whole = _is_whole(rows)[index]
    is_stated = states_network and not how.endswith(OPEN)
    typed = [typed_row(rows, int(i), how=how) for i in index[whole]]
    said = answers(asking, typed if is_stated else [_networkless(one) for one in typed])
    found[:, whole] = said.step_s, said.low_s, said.high_s, said.memory_bytes
    status[whole] = said.status
    return _run_answers(found, status)


def _run_answers(found: Floats, status: NDArray[np.str_]) -> RunAnswers:
    step_s, low_s, high_s, memory_bytes = found
    return RunAnswers(
        step_s=step_s, low_s=low_s, high_s=high_s, memory_bytes=memory_bytes, status=status
    )


def _networkless(typed: Typed) -> Typed:
    """Return a question that says nothing of the network between machines."""
    catalogue, fleet = predictor().catalogue, typed.fleet
    peers = KnownNetworks(catalogue.types, catalogue.accelerators)
    network = peers.network(fleet.devices[0].name, int(fleet.per_node[0]))
    return replace(typed, fleet=over_assumed_network(fleet, network))


def own_rows(rows: LayoutRows, model: LayoutModel) -> list[MeasuredLayout]:
    """Return rows of one table as a user's own runs, told the stack; those with an answer."""
    asking = predictor_by(model)
    typed = [typed_row(rows, int(i), how=TOLD) for i in np.flatnonzero(_is_whole(rows))]
    measured = rows.measured_s[_is_whole(rows)]
    found = [own_run(asking, *one) for one in zip(typed, measured.tolist(), strict=True)]
    return [run for run in found if run is not None]


def _is_whole(rows: LayoutRows) -> NDArray[np.bool_]:
    """Return which rows run on whole machines in whole batches."""
    per_node = np.asarray(rows.machines.devices_per_node)
    layouts = rows.layouts
    whole = (np.asarray(layouts.micro_batch) % 1 == 0) & (np.asarray(layouts.dp) % 1 == 0)
    return np.asarray(whole & (rows.devices % per_node == 0))


def typed_row(rows: LayoutRows, row: int, *, how: Asked) -> Typed:
    """Return what the user of a published run types."""
    shapes, machines = one_row(rows.shapes, row), one_row(rows.machines, row)
    setup: dict[str, Any] = {} if shapes.trained_share else {"adapter_rank": _RANK}
    if how.startswith(TOLD):
        setup["stack"] = str(rows.stack[row])
        if one_row(rows.software, row).optimizer_state_bytes < _MASTER_AND_MOMENTS:
            setup["weights"] = "bf16"
        kernels = stack_facts(*read_stack(setup["stack"])).setup.get("kernels")
        if kernels == "compiled" and FUSIONS[one_row(rows.software, row).fusion] == "eager":
            setup["kernels"] = "eager"
        if one_row(rows.software, row).overlaps_tp and setup["stack"].startswith("torchtitan"):
            setup["overlaps_tensor"] = True  # off unless its user asks for it
    elif rows.is_tuned[row]:
        setup["stack"] = "trainer"  # --finetune
    return Typed(
        name=str(rows.row_id[row]),
        transformer=transformer(shapes),
        precision=_typed_precision(str(rows.precision[row]), int(machines.precision)),
        global_batch=int(rows.global_batch[row]),
        setup=setup,
        space=SPACE if how.endswith(OPEN) else _typed_space(rows, row, how=how),
        fleet=fleet_of(rows, row),
        machines=int(rows.devices[row]) // int(machines.devices_per_node),
    )


def _typed_precision(said: str, code: int) -> Precision:
    """Return the precision that is typed: what the table says, where its products are 16-bit."""
    if code:
        return ASKED[code]
    return "bf16" if said == "bf16" else "fp8" if said.startswith("fp8") else "fp16"


def _typed_space(rows: LayoutRows, row: int, *, how: Asked) -> SearchSpace:
    layouts = one_row(rows.layouts, row)
    degrees = {name: int(getattr(layouts, name)) for name in ("tp", "pp", "cp", "ep")}
    is_told = how == TOLD
    said: dict[str, Any] = {}
    if is_told or max(degrees.values()) > 1:
        said |= degrees
    if rows.is_micro_batch_stated[row]:
        said["micro_batch"] = int(layouts.micro_batch)
    if is_told and rows.is_zero_stated[row]:
        said["zero_stages"] = (int(layouts.zero_stage),)
    if is_told and rows.is_chunks_stated[row] and degrees["pp"] > 1:
        said["chunks"] = chunks = int(layouts.virtual_stages)
        said["schedule"] = "interleaved" if chunks > 1 else "1f1b"
    if is_told and rows.is_recompute_stated[row]:
        said["recomputes"] = (RECOMPUTES[int(layouts.recompute)],)
    if is_told and not (layouts.offloads_optimizer or layouts.offloads_parameters):
        # Who names all else says that no state is moved to the host (nobody notes activations).
        said["offloads"] = ("activations",)
    # A layout that is told is answered where it is possible, as ``predict`` does.
    return replace(SPACE, sureness=POSSIBLE, **said)
