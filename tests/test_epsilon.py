"""One physics: machines that differ by next to nothing are answered as equal ones are.

Every stack is asked of one of three models, and of one of several pairs of clusters, in turn; what
takes a dozen plans of a stack is slow, but for one stack of a kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, pairwise, product
from typing import Any
from zlib import crc32

import pytest
from conftest import slow_unless_kind
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.planners.core.setup import STACKS

MODELS = (
    "--layers 24 --hidden 2048 --heads 16 --sequence 2048 --batch 256",
    "--layers 32 --hidden 4096 --heads 32 --ffn 11008 --gated --vocabulary 32000 --sequence 2048 "
    "--batch 64",
    "--layers 40 --hidden 5120 --heads 40 --sequence 2048 --batch 128",
)
# Equal machines with a network of so many Gbit/s, and the same in two groups.
PAIRS = (
    ("2x8xA100-80GB:nvlink@{0}Gbps", "8xA100-80GB:nvlink@{0}Gbps, 8xA100-80GB:nvlink@{1}Gbps"),
    ("4x8xH100:nvlink@{0}Gbps", "3x8xH100:nvlink@{0}Gbps, 8xH100:nvlink@{1}Gbps"),
    ("8x1xA100-80GB@{0}Gbps", "4x1xA100-80GB@{0}Gbps, 4x1xA100-80GB@{1}Gbps"),
)
NETWORK = 200.0
# A stack, with a model and a pair of clusters by its name: its place in the table changes nothing.
CASES = [
    (stack, MODELS[n % 3], PAIRS[n // 3 % 3])
    for stack in (None, *STACKS)
    for n in (crc32((stack or "").encode()),)
]
NAMES = [stack or "unsaid" for stack, _, _ in CASES]
named = pytest.mark.parametrize(("stack", "model", "pair"), CASES, ids=NAMES)
one_of_a_kind = pytest.mark.parametrize(
    ("stack", "model", "pair"),
    [pytest.param(*case, marks=slow_unless_kind(case[0])) for case in CASES], ids=NAMES,
)  # fmt: skip


@cache
def planned(cluster: str, model: str, stack: str | None, *more: str) -> dict[str, Any] | None:
    """The record of ``advisor plan``; None where no layout fits."""
    told = ["--stack", stack] if stack else []
    line = ["plan", "--cluster", cluster, *model.split(), "--precision", "bf16", *told, *more]
    done = CliRunner().invoke(app, [*line, "--json"])
    if done.exit_code in (1, 3):
        return None
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def best(record: dict[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = (record["front"] or record["plans"])[0]
    return one


def step_s(record: dict[str, Any] | None) -> float:
    """The step of the answer; none is slower than where nothing fits."""
    if record is None:
        return float("inf")
    value: float = best(record)["step_time_s"]["value"]
    return value


def fills(record: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """What every plan takes of every group's devices, and what may be filled of one [GiB]."""
    for one, group in product([*record["plans"], *record["front"]], record["cluster"]["groups"]):
        if group["label"] in one["memory_gib_by_group"]:
            room = group["device_memory_gib"] - group["kept_free_gib"]
            yield one["name"], one["memory_gib_by_group"][group["label"]], room


@named
@pytest.mark.parametrize("unlikeness", [0.0005, pytest.param(0.005, marks=pytest.mark.slow)])
def test_a_network_card_that_differs_by_an_epsilon_moves_the_answer_by_an_epsilon(
    stack: str | None, model: str, pair: tuple[str, str], unlikeness: float
) -> None:
    equal, unlike = (
        planned(text.format(NETWORK, NETWORK * (1 - unlikeness)), model, stack) for text in pair
    )
    assert (equal is None) == (unlike is None)
    if equal is None or unlike is None:
        return
    one, other = best(equal), best(unlike)
    assert step_s(unlike) == pytest.approx(step_s(equal), rel=0.005)
    assert other["memory_gib"] == pytest.approx(one["memory_gib"], rel=0.005)
    # What every group runs is what equal machines run.
    if "alone" not in other["name"]:
        assert list(other["layouts"].values()) == [one["layout"]] * len(other["layouts"])


@one_of_a_kind
def test_a_slower_network_card_is_never_told_faster(
    stack: str | None, model: str, pair: tuple[str, str]
) -> None:
    equal, unlike = pair
    steps = [step_s(planned(equal.format(NETWORK), model, stack))]
    steps += [
        step_s(planned(unlike.format(NETWORK, slower), model, stack))
        for slower in (NETWORK * 0.9995, NETWORK * 0.5, NETWORK * 0.1)
    ]
    for faster, slower in pairwise(steps):
        assert slower >= faster * (1 - 1e-6)


# Each no worse than the one before, in its device and in its network.
RISING = ("8xA100-40GB:nvlink@100Gbps", "8xA100-80GB:nvlink@200Gbps", "8xH100:nvlink@400Gbps")


@one_of_a_kind
def test_no_plan_fills_a_device_beyond_its_room_and_better_machines_are_no_slower(
    stack: str | None, model: str, pair: tuple[str, str]
) -> None:
    found = {}
    for kinds in combinations_with_replacement(range(len(RISING)), 2):
        one, other = (RISING[kind] for kind in kinds)
        cluster = f"2x{one}" if one == other else f"{one}, {other}"
        record = planned(cluster, model, stack)
        found[kinds] = step_s(record)
        for name, needed, room in fills(record) if record else ():
            assert needed <= room * (1 + 1e-9), (cluster, name)
    for worse, better in product(found, found):
        if all(a <= b for a, b in zip(worse, better, strict=True)):
            # Ways are told apart from half a percent on.
            assert found[better] <= found[worse] * 1.005


ASKED = (
    (None, 0, "--tp 2 --pp 2 --recompute full"),
    ("trainer", 0, "--zero 1"),
    ("trainer", 0, "--recompute selective"),
    ("ddp", 0, "--zero 3"),
    ("torchtitan", 0, "--zero 2"),
    ("megatron-core", 2, "--zero 3 --pp 2"),
    ("megatron-core", 2, "--cp 2"),
    ("nemo", 1, "--tp 2 --pp 4 --micro-batch 2 --chunks 2"),
    (None, 1, "--pp 2 --tp 1 --cp 1 --zero 0 --micro-batch 1 --recompute none --no-offload"),
    ("deepspeed", 1, "--zero 0 --micro-batch 1 --recompute none --no-offload"),
    ("deepspeed", 1, "--zero 2 --accumulate 2"),
    ("fsdp", 2, "--zero 3 --recompute full --micro-batch 2"),
)


@pytest.mark.parametrize(("stack", "model", "asked"), ASKED)
def test_what_is_refused_on_equal_machines_is_refused_on_machines_that_hardly_differ(
    stack: str | None, model: int, asked: str
) -> None:
    """What no framework of the stack runs, and what misses by a tenth of a GiB."""
    equal, unlike = (
        planned(text.format(200.0, 199.9), MODELS[model], stack, *asked.split())
        for text in PAIRS[0]
    )
    assert (equal is None) == (unlike is None)
    if equal is None or unlike is None:
        return
    one, other = best(equal), best(unlike)
    assert step_s(unlike) == pytest.approx(step_s(equal), rel=0.005)
    assert other["memory_gib"] == pytest.approx(one["memory_gib"], rel=0.005)
    programs = [
        [word for word in each["command"].split() if word.endswith(".py")]
        for each in (*one["commands"], *other["commands"])
    ]
    assert programs[0]
    assert programs == programs[:1] * len(programs)
