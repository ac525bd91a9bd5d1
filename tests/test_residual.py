"""The process of the device model's errors: what published and own steps say of other devices."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import ModelError
from advisor.estimate.case import Anchors, asked_work, constants
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.lab.fit.device import credible, fit_errors, left_out, without
from advisor.machines import devices
from advisor.machines.devices import accelerator_devices
from advisor.planners.core.arrays import select
from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import Transformer
from advisor.planners.step import calibrate
from advisor.planners.step.calibrate import (
    AMPLITUDES,
    CLOCK_LOG_SD,
    ExpectedErrors,
    SeenErrors,
    at_batch,
    conditioned,
    doubted,
    error_points,
    errors_at,
    expected_errors,
    shared_variance,
)
from advisor.planners.step.describe import transformer_work

SHEET = accelerator_devices()
GPUS = ("T4", "V100-SXM2-16GB", "A100-SXM4-40GB", "RTX-3090", "RTX-4090", "H100-SXM5-80GB", "L4")


def work(hidden: int = 1024, layers: int = 12) -> Work:
    model = Transformer(layers=layers, hidden=hidden, heads=8, sequence=512, vocabulary=32000)
    return transformer_work(model, micro_batch=8, precision="fp16")


def made_up(jobs: tuple[Work, ...], error: Callable[[int, int], float]) -> SeenErrors:
    """Errors of jobs on ``GPUS`` (synthetic), by number of the job and of the card."""
    works = [one for one in jobs for _ in GPUS]
    cards = [SHEET[name] for _ in jobs for name in GPUS]
    values = np.array([error(j, g) for j in range(len(jobs)) for g in range(len(GPUS))])
    return SeenErrors(points=error_points(works, cards), of_peaks=values, of_rates=values)


def test_blocks_of_the_inverse_are_fits_without_the_group() -> None:
    """An oracle: leaving a device out by blocks is asking a process that never saw it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, (2, len(GPUS)))
    seen = made_up((work(), work(2048)), lambda j, g: 0.1 * g + noise[j, g])
    process = fit_errors(seen, np.arange(len(seen.points)))
    mean, log_sd = left_out(process, seen.points.device)
    for name in GPUS:
        out = seen.points.device == name
        at = replace(select(seen.points, out), name=np.array(["asked"] * int(out.sum())))
        asked = errors_at(at, np.zeros(len(at), bool), without(process, out))
        np.testing.assert_allclose(asked.mean, mean[out], atol=1e-8)
        np.testing.assert_allclose(asked.log_sd, log_sd[out], atol=1e-6)


def test_an_error_that_a_job_has_everywhere_is_expected_on_a_card_never_seen() -> None:
    seen = made_up((work(), work(256, layers=2)), lambda j, g: 0.3 if j == 0 else -0.2)
    process = fit_errors(seen, np.arange(len(seen.points)))
    for one, truth in ((work(), 0.3), (work(256, layers=2), -0.2)):
        found = expected_errors(one, [SHEET["RTX-A6000"]], process)
        assert 0.4 < found.mean[0] / truth <= 1.0  # the rest may be this measurement's alone


def test_a_job_unlike_all_that_were_seen_is_left_to_physics() -> None:
    seen = made_up((work(),), lambda j, g: 0.3)
    process = fit_errors(seen, np.arange(len(seen.points)))
    other = work(64, layers=200)
    found = expected_errors(other, [SHEET["RTX-A6000"]], process)
    assert abs(found.mean[0]) < 0.01
    at = error_points([other], [SHEET["RTX-A6000"]])
    prior = calibrate.prior(at, process)
    assert found.log_sd[0] == pytest.approx(math.sqrt(prior[0, 0]), rel=1e-3)


@given(st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=4), st.floats(0.001, 0.2))
def test_what_is_measured_never_widens_and_moves_towards_it(
    errors: list[float], noise: float
) -> None:
    cards = [SHEET["RTX-A6000"], *(SHEET[name] for name in GPUS[: len(errors)])]
    prior = expected_errors(work(), cards, constants().residual)
    mean, log_sd = conditioned(prior, 1, np.array(errors), np.full(len(errors), noise))
    assert log_sd[0] <= prior.log_sd[0] + 1e-9
    if len(errors) == 1:
        assert (mean[0] - prior.mean[0]) * (errors[0] - prior.mean[1]) >= -1e-12


def test_measured_errors_condition_the_others_as_a_joint_normal_distribution_has_it() -> None:
    """An oracle from the inverse of the whole covariance, in which no gain is solved for."""
    rng = np.random.default_rng(2)
    root = rng.normal(0, 0.2, (5, 5))
    prior = ExpectedErrors(mean=rng.normal(0, 0.1, 5), covariance=root @ root.T)
    noise = np.array([0.05, 0.3])
    whole = prior.covariance + np.diag([0, 0, 0, *noise**2])
    precision = np.linalg.inv(whole)
    errors = prior.mean[3:] + np.array([0.02, -0.03])  # near enough that nothing is doubted
    mean, log_sd = conditioned(prior, 3, errors, noise)
    covariance = np.linalg.inv(precision[:3, :3])
    by_hand = prior.mean[:3] - covariance @ precision[:3, 3:] @ (errors - prior.mean[3:])
    np.testing.assert_allclose(mean, by_hand)
    np.testing.assert_allclose(log_sd, np.sqrt(np.diagonal(covariance)))
    alone, wide = conditioned(prior, 5, np.zeros(0), np.zeros(0))
    np.testing.assert_allclose(alone, prior.mean)
    np.testing.assert_allclose(wide, np.sqrt(np.diagonal(prior.covariance)))


@pytest.mark.parametrize("errors", [(1.4,), (1.4, 1.1), (0.05,), (-2.0, -1.8, -2.1)])
def test_what_a_jobs_errors_share_ends_at_one_and_a_half_deviations(
    errors: tuple[float, ...],
) -> None:
    """With the variance added, the least-squares mean lies there; 0 where it lay nearer."""
    off, n = np.array(errors), len(errors)
    known = 0.2**2 * np.ones((n, n)) + np.diag(np.full(n, 0.15**2))
    added = shared_variance(known, off)
    ones = np.ones(n)

    def deviations(covariance: np.ndarray) -> float:
        weight = np.linalg.inv(covariance) @ ones
        return float(abs(weight @ off) / np.sqrt(weight @ ones))

    assert added >= 0
    if added:
        assert deviations(known + added) == pytest.approx(1.5)
    else:
        assert deviations(known) <= 1.5


def test_a_step_at_another_batch_grows_by_what_grows() -> None:
    twice = at_batch(work(), 2 * work().micro_batch)
    for a, b in zip(work().operators, twice.operators, strict=True):
        assert b.fixed_bytes == a.fixed_bytes
        grows = 1 if a.phase == "optimizer" else 2
        assert b.flop == grows * a.flop
        assert b.bytes == pytest.approx(a.fixed_bytes + grows * (a.bytes - a.fixed_bytes))


def test_a_precise_measurement_on_the_very_card_is_believed() -> None:
    card = SHEET["RTX-A6000"]
    prior = expected_errors(work(), [card, card], constants().residual)
    mean, log_sd = conditioned(prior, 1, np.array([0.7]), np.array([1e-4]))
    assert mean[0] == pytest.approx(0.7, abs=0.01)
    assert log_sd[0] < 0.02


def test_kept_and_read_again_the_process_is_the_same(tmp_path: Path) -> None:
    process = constants().residual
    path = tmp_path / devices.FILE
    path.write_text(json.dumps(devices.errors_record(process)))
    again = devices.residual_parameters(path)
    assert devices.errors_record(again) == devices.errors_record(process)
    one, two = (expected_errors(work(), [SHEET["L4"]], p) for p in (process, again))
    np.testing.assert_array_equal(one.mean, two.mean)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("seen"),
        lambda r: r.update(schema_version=9),
        lambda r: r.update(spread=0.0),
        lambda r: r["seen"]["of_peaks"].pop(),
        lambda r: r["seen"]["job"][0].append(1.0),
        lambda r: r["amplitudes"].pop(AMPLITUDES[0]),
        lambda r: r["seen"]["of_rates"].__setitem__(0, float("nan")),
    ],
)
def test_a_spoilt_process_is_refused(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    record = devices.errors_record(constants().residual)
    spoil(record)
    path = tmp_path / devices.FILE
    path.write_text(json.dumps(record))
    with pytest.raises(ModelError, match="cannot use"):
        devices.residual_parameters(path)


def test_what_published_steps_say_is_in_the_answer_on_a_gpu(make_job: Callable[..., Job]) -> None:
    """Shifted errors of steps like this job's shift the answer with them; not on a processor."""
    job = make_job()
    assert job.work is not None
    cards = [SHEET[name] for name in GPUS]
    points = error_points([asked_work(job, job.work)] * len(cards), cards)
    asked = {}
    for shift in (0.0, 0.4):
        seen = SeenErrors(points=points, of_peaks=np.full(len(cards), shift),
                          of_rates=np.full(len(cards), shift))  # fmt: skip
        process = replace(constants().residual, seen=seen)
        predictor = Predictor(constants=replace(constants(), residual=process), learned=None)
        for name in ("g5.xlarge", "c7i.4xlarge"):
            asked[name, shift] = predictor.predict(job, name).step_time_s.value
    assert math.log(asked["g5.xlarge", 0.4] / asked["g5.xlarge", 0.0]) > 0.05
    assert asked["c7i.4xlarge", 0.4] == asked["c7i.4xlarge", 0.0]


def test_the_bare_model_hears_nobody() -> None:
    factor, log_sd = Anchors(core_speed=None).calibration(
        [SHEET["L4"]], np.array([0.3]), constants()
    )
    assert factor[0] == 0.0
    assert log_sd[0] == pytest.approx(0.3)


def test_the_law_of_the_shapes_is_not_corrected_by_errors_of_the_other() -> None:
    anchors = Anchors(core_speed=None, work=work())
    by_shapes, _ = anchors.calibration(
        [SHEET["L4"]], np.array([0.1]), constants(), "transformer shapes"
    )
    assert by_shapes[0] == 0.0


def test_expected_errors_have_positive_deviations() -> None:
    found = expected_errors(work(), [SHEET[name] for name in GPUS], constants().residual)
    assert isinstance(found, ExpectedErrors)
    assert np.all(np.linalg.eigvalsh(found.covariance) > -1e-9)
    assert np.all(found.log_sd > 0)


# What is learned is bounded, robust to a wrong row, and grows with the batch.


@pytest.mark.parametrize("slip", [math.log(14.0), -math.log(14.0)])
@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_measured_or_described_wrongly_leaves_its_neighbours_answers(
    slip: float, is_whole: bool
) -> None:
    """A row, or a whole model, wrong by a factor of fourteen moves no other job's or card's."""
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.05, (3, len(GPUS)))
    jobs = (work(), work(2048), work(1024, layers=24))
    right = made_up(jobs, lambda j, g: 0.1 + noise[j, g])
    wrong = made_up(
        jobs, lambda j, g: 0.1 + noise[j, g] + slip * (j == 0 and (is_whole or g == 3))
    )
    fitted = fit_errors(credible(right), np.arange(len(right.points)))
    spoilt = replace(fitted, seen=credible(wrong))
    others = [SHEET[name] for name in (*GPUS[:3], *GPUS[4:], "RTX-A5000", "RTX-A6000")]
    for job in jobs[1:] if is_whole else jobs:
        one, two = (expected_errors(job, others, p) for p in (fitted, spoilt))
        assert np.abs(one.mean - two.mean).max() < math.log(1.1)


@pytest.mark.parametrize("signs", [(1, -1, 1, -1, 0, 0, 0), (1, 1, 0, 0, 0, 0, 0)])
def test_a_card_without_rows_hears_of_no_error_that_fewer_than_three_chips_share(
    signs: tuple[int, ...],
) -> None:
    seen = made_up((work(),), lambda j, g: 0.4 * signs[g])
    seen = select(seen, seen.of_peaks != 0)
    process = replace(constants().residual, seen=credible(seen))
    for card in ("RTX-A6000", "L40S", "RTX-3080"):
        assert expected_errors(work(), [SHEET[card]], process).mean[0] == pytest.approx(0.0)
    own = expected_errors(work(), [SHEET[seen.points.device[0]]], process).mean[0]
    assert own * seen.of_peaks[0] > 0  # the card that was measured hears of it


@pytest.mark.parametrize(
    ("cards", "is_heard"),
    [
        (("V100-SXM2-16GB", "V100-SXM2-32GB", "V100-PCIe-16GB", "A100-SXM4-40GB"), False),
        (("V100-SXM2-16GB", "A100-SXM4-40GB", "T4"), True),
    ],
)
def test_boards_of_one_chip_are_one_witness(cards: tuple[str, ...], is_heard: bool) -> None:
    on, errors = [SHEET[name] for name in cards], np.full(len(cards), 0.4)
    points = error_points([work()] * len(on), on)
    seen = credible(SeenErrors(points=points, of_peaks=errors, of_rates=errors))
    process = replace(constants().residual, seen=seen)
    (told,) = expected_errors(work(), [SHEET["RTX-A6000"]], process).mean
    assert (told > 0.05) == is_heard


@pytest.mark.parametrize("jobs", [1, 5])
def test_what_jobs_like_it_err_by_on_its_card_does_not_explain_an_own_run_away(jobs: int) -> None:
    """The run says that the job errs, whoever else does on that card: half of it carries over."""
    alike = tuple(work(1024 + 16 * number) for number in range(jobs))
    seen = credible(select(made_up(alike, lambda j, g: 0.4), np.arange(jobs) * len(GPUS)))
    known = replace(constants(), residual=replace(constants().residual, seen=seen))
    ran = Anchors(core_speed=None, work=work()).with_actual(SHEET["T4"], 1.0, math.exp(0.4), 0.2)
    (moved,), _ = ran.calibration([SHEET["RTX-A6000"]], np.array([0.3]), known)
    assert 0.2 < moved < 0.4


def layer_models() -> list[str]:
    names = constants().residual.seen.points.name
    return [name for name in np.unique(names).tolist() if name.startswith("layers, ")]


@pytest.mark.parametrize("card", ["RTX-A6000", "T4", "L4"])
def test_on_a_card_left_out_a_layer_is_told_as_the_equation_has_it(card: str) -> None:
    """Within 1.3, but where its own errors on three cards and more say otherwise."""
    process = constants().residual
    there = process.seen.points.device == card
    known = without(process, there)
    known = replace(known, seen=credible(replace(known.seen, scatter=CLOCK_LOG_SD)))
    for name in layer_models():
        asked = there & (process.seen.points.name == name)
        if not asked.any():
            continue
        at = replace(select(process.seen.points, asked), heard=np.ones(int(asked.sum())))
        mean = errors_at(at, np.zeros(len(at), bool), known).mean
        own = known.seen.points.name == name
        errors, on = known.seen.of_peaks[own], known.seen.points.device[own]
        cards = np.array([np.median(errors[on == one]) for one in np.unique(on)])
        for value in mean[np.abs(mean) > math.log(1.3)]:
            assert (np.sign(cards) == np.sign(value)).sum() >= 3


def test_one_published_model_that_is_described_wrongly_moves_no_other() -> None:
    process = constants().residual
    wrong = process.seen.points.name == "layers, gpt_1.3b"
    spoilt = [
        replace(process, seen=credible(replace(process.seen, of_peaks=process.seen.of_peaks
                                               + shift * wrong, scatter=CLOCK_LOG_SD)))
        for shift in (0.0, 2.0)
    ]  # fmt: skip
    for name in layer_models():
        one = np.flatnonzero((process.seen.points.name == name) & ~wrong)[:1]
        if one.size:
            at = select(process.seen.points, one)
            at = replace(at, device=np.array(["L40S"]), host=np.array([""]), heard=np.ones(1))
            right, off = (errors_at(at, np.zeros(1, bool), p).mean for p in spoilt)
            assert abs(off - right) < math.log(1.1)


def test_an_error_on_three_cards_is_believed_in_part_on_a_fourth() -> None:
    process = constants().residual
    told = []
    for cards in (3, 7):
        seen = credible(select(made_up((work(),), lambda j, g: 0.3), np.arange(cards)))
        (mean,) = expected_errors(work(), [SHEET["RTX-A6000"]], replace(process, seen=seen)).mean
        told.append(float(mean))
    assert 0.05 < told[0] < told[1] < 0.3


@given(st.integers(0, 4), st.sampled_from([-2.5, -1.0, 1.0, 2.5]))
def test_one_wrong_run_of_ones_own_among_five_does_not_carry_over(at: int, slip: float) -> None:
    names = ("A100-SXM4-40GB", "RTX-3090", "RTX-A5000", "A10G", "RTX-3080")
    cards = [SHEET["RTX-A6000"], *(SHEET[name] for name in names)]
    prior = expected_errors(work(), cards, constants().residual)
    truth = prior.mean[1:] + 0.1
    spoilt = truth + slip * (np.arange(len(names)) == at)
    noise = np.full(len(names), 0.02)
    (right,), _ = conditioned(prior, 1, truth, noise)
    (wrong,), _ = conditioned(prior, 1, spoilt, noise)
    assert abs(wrong - right) < math.log(1.25)


OWN = ("RTX-A6000", "A100-SXM4-40GB", "RTX-3090", "T4", "V100-SXM2-16GB", "H100-SXM5-80GB")


@given(st.floats(-1.5, 1.5), st.integers(1, 5))
def test_what_all_own_runs_share_carries_over_and_one_more_never_worsens_it(
    shared: float, runs: int
) -> None:
    """A job that takes e^shared times as long everywhere: each run brings the others nearer."""
    cards = [SHEET[name] for name in OWN]
    off = []
    for count in (runs - 1, runs):
        prior = expected_errors(work(), cards[: count + 1], constants().residual)
        errors = prior.mean[1:] + shared
        (mean,), (log_sd,) = conditioned(prior, 1, errors, np.full(count, 0.03))
        off.append(abs(float(prior.mean[0]) + shared - mean))
    assert off[1] <= off[0] + 0.01
    assert off[1] < 0.4 * abs(shared) + 0.1 if runs > 2 else True
    assert log_sd < math.sqrt(prior.covariance[0, 0]) + abs(shared)


def test_after_three_rows_it_errs_no_more_than_one_shrunk_factor() -> None:
    """Jobs drawn as published ones are, and others that err by twice as much."""
    cards = [SHEET[name] for name in OWN]
    prior = expected_errors(work(), cards, constants().residual)
    chance = np.random.default_rng(7)
    for scale in (1.0, 4.0):
        ours, factor = [], []
        for _ in range(200):
            job = chance.normal(0, scale * 0.24)
            errors = prior.mean + job + chance.normal(0, 0.15, len(cards))
            for runs in (3, 4, 5):
                few = slice(runs + 1)
                some = ExpectedErrors(mean=prior.mean[few], covariance=prior.covariance[few, few])
                known = errors[1 : runs + 1]
                (mean,), _ = conditioned(some, 1, known, np.full(runs, 0.03))
                off = known - prior.mean[1 : runs + 1]
                shrunk = prior.mean[0] + off.mean() * runs / (runs + (0.15 / 0.24) ** 2)
                ours.append(abs(mean - errors[0]))
                factor.append(abs(shrunk - errors[0]))
        assert np.mean(ours) <= 1.05 * np.mean(factor)


@given(st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=8))
def test_errors_that_agree_are_not_doubted(errors: list[float]) -> None:
    known = 0.3**2 * np.ones((len(errors),) * 2) + np.diag(np.full(len(errors), 0.1**2))
    assert not doubted(known, np.array(errors)).any()


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=8))
def test_what_is_doubted_lies_three_deviations_off_at_most(errors: list[float]) -> None:
    known = 0.3**2 * np.ones((len(errors),) * 2) + np.diag(np.full(len(errors), 0.1**2))
    values = np.array(errors)
    inverse = np.linalg.inv(known + np.diag(doubted(known, values)))
    off = (inverse @ values) / np.sqrt(np.diagonal(inverse))
    assert np.abs(off).max() <= 3.01


@given(st.integers(1, 9), st.floats(-2, 2), st.sampled_from(["H100-SXM5-80GB", "T4"]))
def test_whatever_was_seen_a_jobs_error_is_the_same_at_every_batch(
    hidden: int, error: float, card: str
) -> None:
    """So that a larger batch takes no less, and the answer grows as the equation does."""
    toy = work(128 * hidden, layers=2)
    process = replace(constants().residual, seen=made_up((toy,), lambda j, g: error))
    found = [expected_errors(at_batch(work(), b), [SHEET[card]], process) for b in (1, 3, 8, 64)]
    for one in found[1:]:
        np.testing.assert_allclose(one.mean, found[0].mean, atol=1e-12)
        np.testing.assert_allclose(one.log_sd, found[0].log_sd, atol=1e-9)
