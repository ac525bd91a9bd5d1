"""Memory that is not touched as advice: said where it was recorded, silent otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advised import readings, recorded

from advisor import api
from advisor.advice import cures, machines, neighbours
from advisor.advice.asking import facts_here, facts_on
from advisor.advice.facts import Advice, Facts
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, resource_prices
from advisor.collectors.format.recording import StepTime, TouchedReading
from advisor.errors import RunError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job, Program
from advisor.planners.core.errors import GIB
from advisor.planners.systems.working_set import MOST_LOSS
from advisor.quantities import usd_text
from advisor.words.verdicts import advice_text

MakeJob = Callable[..., Job]


def touched(
    sizes: dict[float, float], held: float, begin_s: float = 0.0
) -> tuple[TouchedReading, ...]:
    found = []
    for length, size in sizes.items():
        begin_s += length
        found.append(
            TouchedReading(
                t_s=begin_s, window_s=length, touched_bytes=int(size), resident_bytes=int(held),
                processes=1, held_bytes=int(held),
            )
        )  # fmt: skip
    return tuple(found)


@pytest.fixture(scope="module")
def facts(make_job: MakeJob) -> Facts:
    found = facts_here(Predictor(), make_job(), constraints=Constraints(here_usd_per_h=1.0))
    assert found is not None
    return found


def said(facts: Facts, **changes: Any) -> list[Advice]:
    return list(neighbours.advise_harvesting(recorded(facts, **changes)))


COLD = touched({1: GIB, 2: GIB, 4: GIB}, 8 * GIB)


def test_untouched_memory_is_offered_with_its_loss(facts: Facts) -> None:
    (found,) = said(facts, touched=COLD, readings=readings(1.5, 8 * GIB))
    assert found.details["limit_bytes"] == pytest.approx(1.1 * GIB)
    assert found.details["harvested_bytes"] == pytest.approx(6.9 * GIB)
    assert found.details["loss_fraction"] <= MOST_LOSS
    assert found.time_factor == 1.0 + found.details["loss_fraction"]
    # 1.5 of 8 cores are the larger share once 6.9 of 16 GiB are given back.
    assert found.cost_factor == pytest.approx((1.5 / 8) / (8 / 16), rel=0.02)
    assert "MemoryHigh=1127M" in found.how.text


def test_what_others_may_have_is_priced_as_clouds_price_memory(facts: Facts) -> None:
    (found,) = said(facts, touched=COLD)
    each = resource_prices(Catalogue.load(with_overrides=False))
    gib = found.details["harvested_bytes"] / GIB
    worth = found.details["worth_usd_per_h"]
    assert worth == pytest.approx(gib * each["usd_per_gib_h"], rel=0.05)
    assert f"worth {usd_text(worth)} an hour" in found.change
    assert each["source"] in found.rests_on
    unpriced = replace(facts, resource_prices=dict)
    (found,) = said(unpriced, touched=COLD)
    assert "not known" in found.rests_on
    assert "worth" not in found.change


def test_it_is_said_however_weak_and_under_all_advice(facts: Facts) -> None:
    # Cores decide what is paid: nothing is saved but for others.
    names = [
        one.name
        for one in cures.cures_for(recorded(facts, touched=COLD, readings=readings(7.9, 8 * GIB)))
    ]
    assert "harvest-memory" in names


def test_nothing_is_said_without_a_recording_of_it(facts: Facts) -> None:
    assert said(facts) == []
    assert said(facts, touched=touched({1: 8e9, 2: 8e9}, 8e9)) == []  # all of it is touched
    assert said(facts, touched=touched({1: 1e9, 2: 2e9, 4: 4e9}, 8e9)) == []  # more and more


def test_windows_of_the_start_are_left_out(facts: Facts) -> None:
    steps = StepTime(
        corrected_s=0.1, raw_s=0.1, low_s=0.1, high_s=0.1, steps=30, warmup_steps=1,
        delay_fraction=0.0, clock="optimizer", is_settled=True,
    )  # fmt: skip
    late = recorded(facts, touched=COLD, step_time=steps, startup_s=1.0).recording
    without = recorded(facts, touched=COLD).recording
    assert late is not None
    assert without is not None
    assert [one.window_s for one in neighbours.windows_of(late)] == [2, 4]
    assert [one.window_s for one in neighbours.windows_of(without)] == [1, 2, 4]
    grown = recorded(facts, touched=(replace(COLD[0], held_bytes=GIB), *COLD[1:])).recording
    assert grown is not None
    assert [one.window_s for one in neighbours.windows_of(grown)] == [2, 4]


def test_rented_machines_are_paid_whole(make_job: MakeJob) -> None:
    predictor = Predictor()
    job = make_job()
    rented = facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge"))
    assert said(rented, touched=COLD) == []


def borrowed(facts: Facts, link: float | None = None, **seen: Any) -> list[Advice]:
    return list(
        machines.advise_borrowing(replace(recorded(facts, **seen), borrow_bytes_per_s=link))
    )


@pytest.fixture(scope="module")
def rented(make_job: MakeJob) -> Facts:
    """A program that prepares data on one core, in an hour."""
    program, predictor = Program(duration_s=3600.0, cpu_s=3600.0, parallelism=1.0), Predictor()
    job = replace(
        make_job(), work=None, program=program, total_steps=1.0, peak_rss_bytes=int(20 * GIB)
    )
    return facts_on(predictor, job, predictor.predict(job, "aws:m5.2xlarge"))


def test_a_machine_short_of_memory_pays_for_what_comes_back(rented: Facts) -> None:
    # 2 GiB are touched every second, a tenth more in half a minute, 18 hardly ever.
    seen = touched({1: 2 * GIB, 4: 2.02 * GIB, 30: 2.1 * GIB}, 20 * GIB)
    (swapped,) = borrowed(rented, touched=seen)
    (remote,) = borrowed(rented, 3e9, touched=seen)
    ((offer, _),) = rented.now.configuration.parts
    small = swapped.change.split()[3]
    assert small != offer.instance_type
    assert swapped.cost_factor < 1.0 < swapped.time_factor
    assert remote.details["loss_fraction"] < swapped.details["loss_fraction"]
    # More than windows of 30 s touch is there: pages of 4 KiB come back no faster than at 17 s.
    assert swapped.details["loss_fraction"] <= 0.08 * GIB / 26 / 4096 * 1e-4 * 1.01


def test_borrowing_is_not_offered_where_it_cannot_be_known_or_does_not_pay(
    rented: Facts, facts: Facts
) -> None:
    assert borrowed(rented) == []
    assert borrowed(facts, touched=COLD) == []  # this machine is what it is
    everything = touched({1: 20 * GIB, 4: 20 * GIB}, 20 * GIB)
    assert borrowed(rented, touched=everything) == []  # it would wait for pages all the time
    (asked,) = borrowed(rented, 3e9, touched=everything)  # said where it is asked for
    assert asked.time_factor > 1.5
    assert asked.details["is_least"]


def test_a_stopped_program_is_answered_as_far_as_it_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "prepare.py"
    script.write_text(
        "import time\nkept = bytearray(64 << 20)\nwhile True:\n    time.sleep(0.01)\n"
    )
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path / "runs"))
    words = ["profile", "--working-set", "--for", "4s", "--quiet", "--name", "prep", str(script)]
    subprocess.run([sys.executable, "-m", "advisor.cli", *words], check=False, timeout=120)
    with pytest.raises(RunError, match="not seen to its end"):
        api.recommend("prep")
    found = api.advise("prep", on="here")
    assert not found.is_whole
    text = advice_text(json.loads(json.dumps(found.to_record())))
    assert "as far as it was recorded" in text[0]
