"""Launch commands: what is printed keeps the rules of the framework that is to run it.

Laws: a search's predicate over columns says of every layout what the rules say of it alone; a
layout either has a command or a reason; every printed command passes the checks of its framework,
made by the framework's own code where it is installed and by an independent reading otherwise.
"""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documentation import tool
from hypothesis import given
from hypothesis import strategies as st
from launch_cases import CASES, DENSE, MODELS, SETUPS, odd_layouts, random_layouts

from advisor.estimate.launch.frameworks import command, framework_of, runnable
from advisor.estimate.launch.recorded_script import listed
from advisor.planners.core.arrays import RECOMPUTES, shapes_of
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import (
    DESCRIBED,
    RULES,
    Framework,
    broken_rule,
    is_runnable,
)
from advisor.planners.layouts.problem import (
    SearchSpace,
    axis_part,
    block,
    layout_at,
    recomputes,
    shards,
    splits,
)


@pytest.mark.parametrize(("name", "transformer"), MODELS.items())
@pytest.mark.parametrize("index", range(len(SETUPS)))
def test_columns_say_what_the_rules_say_of_each_layout(
    name: str, transformer: Transformer, index: int
) -> None:
    setup, precision = SETUPS[index]
    space, shapes = SearchSpace(), shapes_of(transformer)
    axis = splits(transformer, 16, 32, space)
    layouts, valid = block(axis_part(axis, slice(None)), recomputes(space), shards(space), 8)
    shape = np.broadcast_shapes(valid.shape, np.shape(layouts.recompute))
    columns = np.broadcast_to(
        is_runnable(layouts, shapes, setup=setup, precision=precision), shape
    )
    chosen = random.Random(index)
    places = np.argwhere(np.broadcast_to(valid, shape))
    seen = set()
    for _ in range(150):
        place = tuple(int(i) for i in places[chosen.randrange(len(places))])
        layout = layout_at(layouts, place, shape)
        alone = runnable(layout, transformer, setup=setup, precision=precision) is None
        assert columns[place] == alone, layout
        seen.add(bool(columns[place]))
    assert False in seen  # the rules are no empty table


def test_every_rule_refuses_some_layout_and_names_its_source() -> None:
    """A rule that nothing breaks is no rule: every one is the first broken by some layout."""
    unused = {(f, r.reason) for f, rules in RULES.items() for r in rules}
    for _, transformer, setup, precision in CASES:
        for layout in [*random_layouts(transformer, 5, 150), *odd_layouts()]:
            for framework in RULES:
                rule = broken_rule(
                    layout, framework, shapes_of(transformer), setup=setup, precision=precision
                )
                if rule:
                    unused.discard((framework, rule.reason))
                    assert rule.source
    # What the grid itself never proposes, and setups cannot ask for.
    odd = replace(DENSE, heads=6, hidden=768, kv_heads=4, ffn=1001, sequence=1030, layers=1)
    for layout in odd_layouts():
        for transformer, precision in (
            (odd, "bf16"), (replace(DENSE, sequence=1030), "bf16"), (MODELS["switch"], "int8")
        ):  # fmt: skip
            for framework in RULES:
                found = broken_rule(layout, framework, shapes_of(transformer), precision=precision)
                if found:
                    unused.discard((framework, found.reason))
    assert not unused


@pytest.mark.parametrize(("name", "transformer", "setup", "precision"), CASES)
def test_a_layout_has_a_command_or_a_reason(
    name: str, transformer: Transformer, setup: TrainingSetup, precision: Precision
) -> None:
    for layout in random_layouts(transformer, 7, 60):
        refusal = runnable(layout, transformer, setup=setup, precision=precision)
        keywords: dict[str, Any] = {"setup": setup, "precision": precision}
        if refusal:
            assert ": " in refusal  # framework: what it asks
            with pytest.raises(PlanningError, match="no released framework"):
                command(layout, transformer, group="a", nodes=4, per_node=8, **keywords)
            continue
        made = command(layout, transformer, group="a", nodes=4, per_node=8, **keywords)
        assert made.text.count("torchrun --nnodes 4 --nproc-per-node 8") == 1


def test_what_people_run_has_a_command() -> None:
    """Published ways of training, and the framework that their owners used or could."""
    published: dict[Framework, list[tuple[Layout, Transformer]]] = {
        "trainer": [
            (Layout(dp=8), DENSE),
            (Layout(dp=8, zero_stage=3, recompute="full"), DENSE),
            (Layout(dp=32, zero_stage=3, shard_group=8), DENSE),
            (Layout(dp=8, zero_stage=3, offload=frozenset({"optimizer", "parameters"})), DENSE),
        ],
        "deepspeed": [
            (Layout(dp=8, zero_stage=2, recompute="full"), DENSE),
            (Layout(dp=1, offload=frozenset({"optimizer"})), DENSE),
            (Layout(dp=8, zero_stage=3, offload=frozenset({"optimizer"})), DENSE),
        ],
        "megatron": [
            # Megatron-LM's weak-scaling table, Llama-3's and Mixtral's published recipes.
            (Layout(dp=2, tp=8, pp=2, virtual_stages=2, accumulation_steps=8,
                    schedule="interleaved", is_sequence_parallel=True, zero_stage=1,
                    recompute="selective"), DENSE),
            (Layout(dp=4, cp=2, tp=2, is_sequence_parallel=True, zero_stage=1), DENSE),
            (Layout(dp=8, ep=8, pp=4, accumulation_steps=8, zero_stage=1), MODELS["mixture"]),
            (Layout(dp=8, tp=2, zero_stage=3), DENSE),
            (Layout(dp=8, offload=frozenset({"activations"})), DENSE),
        ],
    }  # fmt: skip
    for framework, layouts in published.items():
        for layout, transformer in layouts:
            assert framework_of(layout, transformer) == framework, layout


def test_offloaded_activations_never_meet_pipeline_stages_or_recomputation() -> None:
    for recompute in RECOMPUTES:
        for pp in (1, 2, 4):
            layout = Layout(
                dp=2,
                tp=2,
                pp=pp,
                accumulation_steps=4,
                recompute=recompute,
                offload=frozenset({"activations"}),
            )
            refusal = runnable(layout, DENSE)
            assert (refusal is None) == (pp == 1 and recompute == "none")


def test_all_frameworks_have_rules() -> None:
    assert set(DESCRIBED) <= set(RULES)


def test_the_page_on_launching_includes_the_table() -> None:
    written = tool("launch_rules")
    assert written.TARGET.read_text() == written.tables(), "run docs/tools/launch_rules.py"
    page = Path(__file__).parent.parent / "docs" / "handing_over.md"
    assert f'--8<-- "docs/generated/{written.TARGET.name}"' in page.read_text()
    rules = written.tables().split("### `")[1:]
    assert sum(text.count(" | `") for text in rules) == sum(map(len, RULES.values()))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=5))
def test_names_of_modules_are_text_in_the_launch_files_whatever_is_in_them(
    names: list[str],
) -> None:
    """A recording comes from somewhere; what is written is run: a quote must not end the text."""
    counted = [f"{name}.{i}" for name in names[:1] for i in range(3)]
    for given_names in (names, counted):
        written = listed(given_names)
        if written.startswith('[f"'):
            assert all(sign.isalnum() or sign in '_.-[]f"{} ()' for sign in written)
        else:
            assert ast.literal_eval(written) == given_names
