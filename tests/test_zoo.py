"""The zoo's runner: what it reads of a script, and what it calls right, held and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.lab.experiments import zoo

SCRIPTS = zoo.scripts()


def test_a_header_says_how_a_script_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '#!/usr/bin/env python\n# zoo: steps=240 args="--epochs 3 -b 8" minute=yes '
        "needs=torch,no_module_of_this_name workers=2\nimport torch\n"
    )
    found = zoo.header(path)
    assert found is not None
    assert (found.steps, found.args, found.workers) == (240, ("--epochs", "3", "-b", "8"), 2)
    assert found.is_of_a_minute
    assert found.missing == ("no_module_of_this_name",)
    assert "torch.distributed.run" in found.command
    path.write_text("# zoo: steps=3\n")
    plain = zoo.header(path)
    assert plain is not None
    assert (plain.args, plain.needs, plain.workers) == ((), (), 1)
    path.write_text("import torch\n")
    assert zoo.header(path) is None


@pytest.mark.parametrize("words", ["args=x", "steps=3 speed=4", "steps=many"])
def test_a_header_that_says_nothing_usable_is_refused(tmp_path: Path, words: str) -> None:
    (tmp_path / "a.py").write_text(f"# zoo: {words}\n")
    with pytest.raises(ValueError, match=r"."):
        zoo.header(tmp_path / "a.py")


@given(
    true_s=st.floats(1.0, 1e4), value=st.floats(0.1, 10.0), low=st.floats(0.0, 1.0),
    high=st.floats(1.0, 10.0),
)  # fmt: skip
def test_an_answer_is_right_held_or_silently_wrong(
    true_s: float, value: float, low: float, high: float
) -> None:
    """Exactly one of the three, whatever is said; no answer is none of them."""
    said = true_s * value
    row = zoo.Row(
        name="a", true_steps=1, true_s=true_s, low_s=said * low, value_s=said, high_s=said * high
    )
    verdicts = (row.is_right, not row.is_right and row.holds, row.is_silently_wrong)
    assert sum(verdicts) == 1
    assert row.is_right == (abs(said - true_s) <= zoo.TOLERANCE * true_s) or pytest.approx(
        zoo.TOLERANCE
    ) == abs(value - 1)
    nothing = zoo.Row(name="a", true_steps=1, true_s=true_s, said="not known well enough")
    assert not nothing.is_right
    assert not nothing.holds
    assert not nothing.is_silently_wrong
    assert "1 refused, 0 silently wrong" in zoo.summary([nothing])
    assert ("1 silently wrong (a)" in zoo.summary([row])) == row.is_silently_wrong
    assert ("1 held" in zoo.summary([row])) == verdicts[1]


def test_what_is_profiled_is_what_is_timed() -> None:
    """A launcher starts and ends too: its seconds are in both, or in neither."""
    launched = next(one for one in SCRIPTS if one.path.name == "ddp_torchrun.py")
    assert launched.words == ["--", *launched.command]
    plain = next(one for one in SCRIPTS if one.workers == 1 and one.path.suffix == ".py")
    assert plain.words == plain.command[1:]
    wrapped = next(one for one in SCRIPTS if one.is_wrapped)
    assert wrapped.words[:2] == ["--workers", str(wrapped.workers)]


def test_every_script_has_a_header_and_names_are_the_scripts() -> None:
    assert len(SCRIPTS) >= 14
    there = {p.name for p in zoo.SCRIPTS.iterdir() if p.suffix in (".py", ".sh")}
    assert {one.path.name for one in SCRIPTS} == there


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "script", [one for one in SCRIPTS if one.is_of_a_minute], ids=lambda one: one.path.name
)
def test_what_is_said_of_a_script_of_a_minute(script: zoo.Script, tmp_path: Path) -> None:
    """Its steps are counted, its length is right or asked for, and it is answered or refused."""
    if script.missing:
        pytest.skip(f"needs {', '.join(script.missing)}")
    row = zoo.ask(script, tmp_path, limit_s=20.0)
    assert row.exit_codes[0] == 0
    assert row.step_s is not None
    if row.confidence in ("certain", "likely"):
        assert row.steps == script.steps
    assert row.exit_codes[1] in (0, 3), row.said
    if row.exit_codes[1] == 0:
        assert row.low_s is not None
        assert row.high_s is not None
        assert 0 < row.low_s < row.high_s < 5 * row.low_s
