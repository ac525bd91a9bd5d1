"""Where loops break off: what is read of them is what they do, for every way of saying it."""

from __future__ import annotations

import ast
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectors_work import look_at

from advisor.collectors.hooks.trace.expressions import value_of
from advisor.collectors.hooks.trace.loop_source import Exits

HEADS = {
    "range": ("for i in range({start}, {start} + {size} * {stride}, {stride}):", True),
    "enumerate": ("for i, batch in enumerate(loader, {start}):", False),
    "keyword": ("for i, batch in enumerate(loader, start={start}):", False),
    "zip": ("for i, b in zip(range({start}, 9999, {stride}), loader):", True),
}  # fmt: skip
TESTS = ["i >= {limit}", "i > {limit}", "{limit} <= i", "i + 1 >= {limit}", "2 * i >= {limit}",
         "not i < {limit}", "limit is not None and i >= limit", "quick or i >= {limit}",
         "i % 7 == 6", "i == {start} + 3 * {step}"]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    head=st.sampled_from(sorted(HEADS)),
    test=st.sampled_from(TESTS),
    start=st.integers(0, 4),
    stride=st.integers(1, 3),
    size=st.integers(6, 30),
    limit=st.integers(4, 60),
    epochs=st.integers(1, 3),
    is_first=st.booleans(),
)
def test_a_loop_is_read_as_it_runs(
    head: str, test: str, start: int, stride: int, size: int, limit: int, epochs: int,
    is_first: bool,
) -> None:  # fmt: skip
    text, has_stride = HEADS[head]
    step = stride if has_stride else 1
    condition = test.format(limit=limit, start=start, step=step)
    leave = [f"        if {condition}:", "            break"]
    body = [*leave, "        step()"] if is_first else ["        step()", *leave]
    lines = [
        f"limit, quick, loader = {limit}, False, DataLoader(range({size}))",
        f"for epoch in range({epochs}):",
        "    " + text.format(start=start, stride=step, size=size),
        *body,
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as alone:
        # In a thread of its own: the loops of the test's own runner are under no step there.
        count, work = alone.submit(look_at, Path(folder), "\n".join(lines) + "\n").result()
    if count >= 2:  # the first look is at the second step
        assert work is not None, "\n".join(lines)
        assert work.steps == count, "\n".join(lines)


class Forbidden:
    """Every operator and attribute of this one fails the test."""

    def _fail(self, *_: Any) -> Any:
        raise AssertionError("code of the script's was run")

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __bool__ = _fail
    __getitem__ = __call__ = __neg__ = _fail

    @property
    def shape(self) -> Any:
        return self._fail()


@pytest.mark.parametrize(
    "text",
    ["x + 1", "1 + x", "x < 3", "3 < x", "not x", "-x", "x and 1", "x.shape", "x.size(0)", "x()",
     "x[0]", "4 if x else 5", "f()", "(lambda: x)()", "[x for _ in y]", "2 ** 9 ** 9"],
)  # fmt: skip
def test_nothing_of_the_scripts_is_run(text: str) -> None:
    scope = {"x": Forbidden(), "f": Forbidden()._fail, "y": [1]}
    assert value_of(ast.parse(text, mode="eval").body, scope) is None


@settings(max_examples=80, deadline=None)
@given(
    text=st.text(
        st.sampled_from("if x:\n break return while for in y > 3 and not ()"), max_size=60
    )
)
def test_no_source_makes_it_fail(text: str) -> None:
    try:
        tree = ast.parse(f"for i in range(9):\n    step()\n    {text}")
    except (SyntaxError, ValueError):
        return
    Exits(tree.body[0], tree, {"x": 1, "y": 2}, 2)


def test_a_tensors_sizes_are_read() -> None:
    torch = pytest.importorskip("torch")
    scope = {"x": torch.zeros(6, 4), "math": sys.modules["math"]}
    for text, value in (("x.size(0)", 6), ("x.size()[1]", 4), ("x.shape[0] // 4", 1),
                        ("x.numel() - 1", 23), ("math.ceil(x.shape[0] / 4)", 2)):  # fmt: skip
        assert value_of(ast.parse(text, mode="eval").body, scope) == value
