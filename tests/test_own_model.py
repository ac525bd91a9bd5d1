"""Noted runs and what is learned from them: laws, by the commands that a user types.

What was noted as it was predicted changes nothing, whatever was noted; what took twice as long
moves jobs of its kind in part and no other; and the way back is the way back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_retraining import MACHINES, OTHER, OWN, home, runner, said

from advisor.answer import from_record, to_record
from advisor.cli.program import app
from advisor.learned import KNOWN, Lessons, Places, Residuals, contests, judged, kind_of

CARD = "g4dn.xlarge"
assert home  # the fixture of the newcomer's home


def answer(run: str, machine: str) -> dict[str, Any]:
    found: dict[str, Any] = said("predict", "--run", run, "--on", machine)
    return found


def everything() -> list[dict[str, Any]]:
    return [
        answer(run, machine)[what]
        for run in (OWN[0], OTHER)
        for machine in (*MACHINES, CARD)
        for what in ("step_time_s", "training_time_h", "cost_usd")
    ]


def train_on(home: Path, *words: str) -> Any:
    """Train on the notes alone, which takes a second."""
    journal = home / ".local" / "share" / "advisor" / "runs" / "journal.jsonl"
    return runner.invoke(
        app, ["train", "models", "--model", "ridge", "--data", str(journal), *words]
    )


def note_on(card: str, factor: float, names: tuple[str, ...] = OWN) -> None:
    for name in names:
        step_s = factor * answer(name, card)["step_time_s"]["value"]
        said("runs", "actual", name, card, "--step-time", f"{step_s!r}s")


@pytest.mark.parametrize("way", ["step", "time", "bill"])
def test_what_was_predicted_changes_no_value_before_and_after_training(
    home: Path, way: str
) -> None:
    before = everything()
    for machine in (MACHINES[0], CARD):
        told = answer(OWN[0], machine)
        given = {
            "step": ["--step-time", f"{told['step_time_s']['value']!r}s"],
            "time": ["--time", f"{told['training_time_h']['value'] * 3600!r}s"],
            "bill": ["--cost", repr(told["cost_usd"]["value"])],
        }[way]
        said("runs", "actual", OWN[0], machine, *given)
    for _ in ("noted", "learned"):
        for old, new in zip(before, everything(), strict=True):
            # 1e-6, but for waits of a processor's step that no anchor holds (1.6e-5 elsewhere).
            assert new["value"] == pytest.approx(old["value"], rel=2e-5)
            assert new["low"] >= old["low"] * (1 - 1e-6)
            assert new["high"] <= old["high"] * (1 + 1e-6)
        train_on(home)


def test_twice_the_step_moves_that_job_to_twice_and_others_of_its_kind_in_part(home: Path) -> None:
    own, other = answer(OWN[0], CARD)["step_time_s"], answer(OTHER, CARD)["step_time_s"]
    elsewhere = answer(OTHER, MACHINES[0])["step_time_s"]
    note_on(CARD, 2.0)
    now = answer(OWN[0], CARD)["step_time_s"]
    assert now["low"] <= 2 * own["value"] <= now["high"]
    assert answer(OTHER, CARD)["step_time_s"] == other  # nothing was learned yet
    done = train_on(home)
    assert done.exit_code == 0, done.output
    learned = answer(OTHER, CARD)
    assert 1.2 < learned["step_time_s"]["value"] / other["value"] < 2.0
    assert answer(OTHER, MACHINES[0])["step_time_s"] == elsewhere
    (fact,) = [one for one in learned["sources"] if one["what"] == "correction of the step"]
    assert all(name in fact["note"] for name in sorted(OWN)[:3])


def test_training_is_undone_and_the_drift_that_it_learned_from_is_over(home: Path) -> None:
    before = everything()
    note_on(CARD, 20.0)
    noted = everything()
    assert said("runs", "compare")["drift"]["looked_at"] == len(OWN)
    done = train_on(home)
    assert "what changes, a step" in done.stdout
    assert said("runs", "compare")["drift"]["looked_at"] == 0
    assert everything() != noted != before
    assert runner.invoke(app, ["train", "--undo"]).exit_code == 0
    assert everything() == noted
    again = runner.invoke(app, ["train", "--undo"])
    assert again.exit_code != 0


def places(kinds: list[str], jobs: str = "x", machine: str = "T4") -> Places:
    rows = len(kinds)
    return Places(
        job=np.resize(list(jobs), rows),
        machine=np.full(rows, machine),
        architecture=np.full(rows, "turing"),
        is_several=np.zeros(rows, bool),
        kind=np.array(kinds),
        flop=np.full(rows, 1e10),
        features=np.zeros((rows, 6)),
        amounts=np.zeros((rows, 1)),
    )


def residuals(at: Places, off: Any) -> Residuals:
    rows = len(at.flop)
    return Residuals(places=at, residual=np.array(off, float), log_sd=np.full(rows, 0.2))


def test_unlike_jobs_are_not_moved_at_all_and_like_ones_less_than_the_runs() -> None:
    kinds = ["convolutions"] * 3
    runs = residuals(places(kinds, "abc"), np.full(3, 0.7))
    error = runs.expected(places(["convolutions", "transformers"]))
    assert 0.35 < error[0] < 0.7
    assert error[1] == 0.0
    few = runs.take(np.array([0])).expected(places(["convolutions"]))
    assert 0.0 < few[0] < error[0]


def test_only_a_region_with_a_gain_beyond_chance_is_won() -> None:
    rng = np.random.default_rng(0)
    noise = residuals(places(["convolutions"] * 12, "abcdefghijkl"), rng.choice([-0.3, 0.3], 12))
    assert not judged(noise)[0].is_won
    (alone,) = contests(np.array(["r"]), np.array(["a"]), np.array([0.5]), np.array([0.0]))
    assert not alone.is_won  # one job cannot be left out
    slow = residuals(noise.places, 0.5 + rng.normal(0, 0.05, 12))
    assert judged(slow)[0].is_won


def of_sizes(jobs: str, batches: list[float]) -> Places:
    """Each job at each batch."""
    at = places(["convolutions"] * (len(jobs) * len(batches)), jobs)
    return replace(at, amounts=np.repeat(batches, len(jobs))[:, None])


def test_a_job_with_runs_is_answered_by_them_and_another_by_what_all_have_in_common() -> None:
    """Every job is off by its own factor: they say much of themselves and nothing of others."""
    at = of_sizes("abcdef", [0.0, 0.3, 0.6])
    own = dict(zip("abcdef", np.linspace(-0.5, 0.5, 6), strict=True))
    off = np.array([own[job] for job in at.job])
    found = judged(residuals(at, off))
    assert {one.standing for one in found if one.is_won} == {KNOWN}
    lessons = Lessons.of(residuals(at, off), found)
    known = of_sizes("af", [0.45])
    error, spread, heard = lessons.expected(known)
    assert heard.all()
    assert error == pytest.approx([-0.5, 0.5], abs=0.15)
    assert (spread < 1.0).all()
    assert not lessons.expected(of_sizes("z", [0.45]))[2].any()


def test_one_noted_job_alone_moves_its_own_next_answer_and_no_other() -> None:
    noted = residuals(of_sizes("a", [0.0]), [0.7])
    lessons = Lessons.of(noted, judged(noted))
    assert not lessons.kept
    error, _, heard = lessons.expected(of_sizes("ab", [0.1]))
    assert heard.tolist() == [True, False]
    assert error[0] == pytest.approx(0.7, rel=0.05)
    elsewhere = replace(of_sizes("a", [0.1]), machine=np.array(["A100"]))
    assert not lessons.expected(elsewhere)[2].any()


def test_where_own_runs_say_less_than_the_answers_they_are_not_heard() -> None:
    rng = np.random.default_rng(1)
    at = of_sizes("abcd", [0.0, 0.3, 0.6, 0.9])
    noise = residuals(at, rng.choice([-0.3, 0.3], 16))
    lessons = Lessons.of(noise, judged(noise))
    assert lessons.lost
    assert not lessons.expected(of_sizes("abcd", [0.45]))[2].any()


def test_trees_are_kept_as_they_answered() -> None:
    """Errors that jump at a batch are learned by trees; what is read back says the same."""
    at = of_sizes("abcdefgh", [0.0, 0.7, 1.4, 2.1, 2.8])
    off = np.where(at.amounts[:, 0] > 1.0, 0.5, -0.5) * np.where(at.amounts[:, 0] > 2.0, -1, 1)
    runs = residuals(at, off)
    names = {name: np.abs(runs.left_out(at.cell, name) - off).mean() for name in
             ("pooled", "linear", "boosting")}  # fmt: skip
    assert names["boosting"] < names["linear"]
    lessons = Lessons(kept=(), lost=(), residuals=runs, trees={"a": runs.boosted()})
    again = from_record(Lessons, to_record(lessons))
    told = again.residuals.expected(at, "boosting", again.trees["a"])
    assert told == pytest.approx(off, abs=0.05)


def test_intervals_of_what_was_learned_hold_nine_runs_in_ten() -> None:
    rng = np.random.default_rng(0)
    jobs = "abcdefghijklmnopqrst"
    at = of_sizes(jobs, [0.0, 1.0, 2.0])
    off = 0.6 + rng.normal(0, 0.12, len(at.flop))
    runs = residuals(at, off)
    told = Lessons.of(runs, judged(runs))
    asked = of_sizes(jobs, [0.5, 1.5, 2.5])
    error, spread, heard = told.expected(asked)
    truth = 0.6 + rng.normal(0, 0.12, len(error))
    inside = np.abs(truth - error) <= 1.645 * spread * 0.2
    assert heard.all()
    assert 0.8 <= inside.mean() <= 1.0
    assert (spread < 1.0).all()


def test_kinds_are_told_by_where_the_work_is() -> None:
    assert kind_of({"matmul": 1.0}, is_transformer=True) == "transformers"
    assert kind_of({"recurrent": 0.5, "matmul": 0.5}) == "recurrent"
    assert json.dumps(kind_of({})) == '"dense layers"'


def test_imported_times_of_a_recorded_program_move_its_next_answer(home: Path) -> None:
    """A table of whole jobs on other machines, each half as long again; nothing else is said."""
    steps, asked = 400_000, MACHINES[0]
    before, other = answer(OWN[0], asked)["step_time_s"], answer(OTHER, CARD)["step_time_s"]
    rows = ["program,machine,time_s,steps"]
    for machine in ("c5.large", "m5.large", "t3.large", "c6i.large", "m6i.large"):
        step_s = answer(OWN[0], machine)["step_time_s"]["value"]
        rows.append(f"{OWN[0]},{machine},{1.5 * step_s * steps + 120.0},{steps}")
    table = home / "team.csv"
    table.write_text("\n".join([*rows, f"ghost,c5.large,900,{steps}"]) + "\n")
    done = runner.invoke(app, ["runs", "import", str(table)])
    assert done.exit_code == 0, done.output
    assert f"5 rows of 20261121-120940-{OWN[0]}-4865: noted as real runs" in done.stdout
    assert "1 row of ghost: nothing recorded says what it computes" in done.stdout
    assert "advisor profile ghost.py" in done.stdout
    again = runner.invoke(app, ["runs", "import", str(table)])
    assert ": noted before" in again.stdout
    assert len(said("runs", "compare")["runs"]) == 5
    (home / "advisor.toml").unlink()
    trained = runner.invoke(app, ["train"])
    assert trained.exit_code == 0, trained.output
    after = answer(OWN[0], asked)["step_time_s"]
    assert before["value"] * 1.1 < after["value"]
    assert after["low"] <= 1.5 * before["value"] <= after["high"]
    assert answer(OTHER, CARD)["step_time_s"] == other
