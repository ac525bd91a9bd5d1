"""Other jobs' runs: read from one table, and heard on machines that a job was never on."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.ask import JobSpec
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.knowledge.known import job_from_runs, job_of
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.jobs.runs import Actual, read_runs, runs_of
from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.machines.fleet import lone_fleet
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.from_runs import (
    ALIKE,
    DEVICE,
    JOB,
    LENGTH,
    RUN,
    JobErrors,
    MeasuredRun,
    _spread,
    amounts_of,
    expected_error,
    steps_s,
    work_from_runs,
)

CLI = CliRunner()
SHEET = accelerator_devices()
PARAMETERS = device_parameters()
HOME, AWAY = "T4", "A10G"
SLOW = 1.8  # every made-up job takes so many times longer on AWAY than the equation says


def made_up(name: str, size: float, cards: tuple[str, ...] = (HOME, AWAY)) -> tuple[Actual, ...]:
    """Runs of a job (synthetic): the equation's steps of a work of that size, slow on AWAY."""
    seconds = MeasuredRun(device=unmeasured(SHEET[HOME]), batch=32, step_s=0.1 * size)
    work = work_from_runs([seconds], PARAMETERS, precision="tf32")
    runs = [MeasuredRun(device=unmeasured(SHEET[c]), batch=32, step_s=1.0) for c in cards]
    return tuple(
        Actual(run=name, provider="", instance_type=card, count=1, batch=32,
               step_s=float(step_s) * (SLOW if card == AWAY else 1.0))
        for card, step_s in zip(cards, steps_s(work, runs, PARAMETERS), strict=True)
    )  # fmt: skip


def known(
    asking: Predictor, others: tuple[Actual, ...] = (), cards: tuple[str, ...] = (HOME,)
) -> Job:
    return job_from_runs(
        made_up("mine", 1.0, cards), asking.catalogue, PARAMETERS, name="mine", precision="tf32",
        others=others,
    )  # fmt: skip


def step_on(asking: Predictor, job: Job, card: str) -> tuple[float, float]:
    columns = asking.step_columns(
        job, np.array([0]), np.array([1]),
        fleet=lone_fleet(SHEET[card], 1, asking.catalogue.accelerators.get(card)),
    )  # fmt: skip
    return float(columns.step_s[0]), float(columns.log_sd[0])


def several(count: int) -> tuple[Actual, ...]:
    sizes = np.geomspace(0.5, 2.0, count)
    return tuple(run for i, size in enumerate(sizes) for run in made_up(f"job {i}", float(size)))


def test_a_machine_on_which_other_jobs_are_slow_is_slow_for_this_one(asking: Predictor) -> None:
    """The first says most of it; the more of them say so, the narrower the answer is."""
    alone, alone_sd = step_on(asking, known(asking), AWAY)
    (_, truth) = made_up("mine", 1.0)
    off, widths = [abs(math.log(alone / truth.step_s))], [alone_sd]
    for count in (1, 3, 6, 12):
        step_s, log_sd = step_on(asking, known(asking, several(count)), AWAY)
        off.append(abs(math.log(step_s / truth.step_s)))
        widths.append(log_sd)
    assert off[0] > 0.5
    assert max(off[1:]) < 0.15
    assert widths == sorted(widths, reverse=True)


def test_other_jobs_say_nothing_of_machines_that_they_or_only_they_were_on(
    asking: Predictor,
) -> None:
    """On other cards, where the job ran itself, and of jobs that share no card with it."""
    card = "V100-SXM2-16GB"
    assert step_on(asking, known(asking, several(3)), card) == step_on(asking, known(asking), card)
    own = known(asking, several(3), (HOME, AWAY))
    assert step_on(asking, own, AWAY) == step_on(asking, known(asking, (), (HOME, AWAY)), AWAY)
    apart = tuple(one for one in several(3) if one.instance_type == AWAY)
    assert step_on(asking, known(asking, apart), AWAY) == step_on(asking, known(asking), AWAY)


@pytest.mark.parametrize("lacked", ["V100-SXM2-16GB", "K80", "A100-SXM4-40GB"])
def test_a_run_of_ones_own_where_the_others_never_ran_worsens_nothing(
    asking: Predictor, lacked: str
) -> None:
    """What the others err by is of steps that were fitted to the shared cards alone."""
    (_, truth) = made_up("mine", 1.0)
    off = {
        cards: abs(math.log(step_on(asking, known(asking, several(6), cards), AWAY)[0]
                            / truth.step_s))
        for cards in ((HOME,), (HOME, lacked))
    }  # fmt: skip
    assert off[HOME, lacked] <= off[HOME,] + 0.03


def errors(seed: int, jobs: int, runs: int) -> JobErrors:
    rng = np.random.default_rng(seed)
    return JobErrors(
        features=rng.normal(0, 2, (jobs * runs, 5)), job=np.repeat(np.arange(jobs), runs),
        error=rng.normal(0.3, 0.2, jobs * runs), spread=1.0,
    )  # fmt: skip


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.floats(-1, 1))
def test_what_is_expected_is_the_mean_of_a_gaussian_given_the_errors(
    seed: int, jobs: int, runs: int, usual: float
) -> None:
    """Against the joint distribution, row by row; a job far from all hears the device alone."""
    seen = errors(seed, jobs, runs)
    at = np.zeros(5)
    x, job = np.r_[[at], seen.features], np.r_[-1, seen.job]
    whole = np.empty((len(x), len(x)))
    for i, j in np.ndindex(whole.shape):
        alike = math.exp(-0.5 * float(np.sum((x[i] - x[j]) ** 2)) / LENGTH**2)
        whole[i, j] = (
            DEVICE**2 + ALIKE**2 * alike + JOB**2 * (job[i] == job[j]) + RUN**2 * (i == j)
        )
    gain = np.linalg.solve(whole[1:, 1:], whole[1:, 0])
    mean, log_sd = expected_error(at, seen, usual)
    assert mean == pytest.approx(usual + gain @ (seen.error - usual), abs=1e-8)
    assert log_sd == pytest.approx(math.sqrt(whole[0, 0] - gain @ whole[1:, 0]), rel=1e-6)
    far, far_sd = expected_error(at + 1e3, seen, usual)
    assert far_sd >= log_sd - 1e-9
    assert min(usual, *seen.error) - 1e-9 <= far <= max(usual, *seen.error) + 1e-9


@given(st.integers(0, 10**6), st.integers(4, 12), st.floats(1.0, 5.0))
def test_widths_are_those_that_cover_jobs_left_out(seed: int, jobs: int, factor: float) -> None:
    """Each asked of the others; errors that are larger by a factor make widths as much larger."""
    seen = errors(seed, jobs, 2)
    z = []
    for one in range(jobs):
        rest = seen.job != one
        others = JobErrors(features=seen.features[rest], job=seen.job[rest],
                           error=seen.error[rest], spread=1.0)  # fmt: skip
        for row in np.flatnonzero(~rest):
            mean, log_sd = expected_error(seen.features[row], others, 0.0)
            z.append(abs(seen.error[row] - mean) / log_sd)
    level = math.ceil(0.9 * (jobs + 1) * 2) - 1  # two rows a job, and one job that is not seen
    expected = max(1.0, sorted(z)[min(level, len(z) - 1)] / 1.645)
    assert _spread(seen.features, seen.job, seen.error) == pytest.approx(expected, rel=1e-6)
    larger = _spread(seen.features, seen.job, factor * seen.error)
    assert larger >= _spread(seen.features, seen.job, seen.error) - 1e-9


@given(st.floats(1e-3, 10.0), st.integers(1, 512))
def test_amounts_of_a_fitted_step_are_those_that_it_was_made_of(step_s: float, batch: int) -> None:
    """A step twice as long has twice of all that its rates are of."""
    runs = [
        [MeasuredRun(device=unmeasured(SHEET[HOME]), batch=batch, step_s=factor * step_s)]
        for factor in (1.0, 2.0)
    ]
    once, twice = (amounts_of(work_from_runs(one, PARAMETERS, precision="tf32")) for one in runs)
    assert np.array(twice) == pytest.approx(2 * np.array(once), rel=1e-3)


TABLE = "job,machine,step,batch\nbert,T4,310ms,32\nbert,A10G,220ms,32\nvit,T4,150ms,32\n"


def test_a_table_of_several_jobs_is_split_by_the_name_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "team.csv"
    path.write_text(TABLE)
    runs = read_runs(path)
    own, others = runs_of(path, runs, "vit")
    assert [one.run for one in own] == ["vit"]
    assert [one.run for one in others] == ["bert", "bert"]
    with pytest.raises(UsageError, match="runs of 2 jobs: bert, vit") as raised:
        runs_of(path, runs)
    assert "--runs-of" in raised.value.hint
    with pytest.raises(UsageError, match="no run of a job 'gpt'") as raised:
        runs_of(path, runs, "gpt")
    assert "bert, vit" in raised.value.hint
    assert runs_of(path, runs[:2]) == (runs[:2], ())  # one name is the job


@given(st.lists(st.sampled_from(["", "a", "b", " c "]), min_size=1, max_size=8))
def test_every_run_of_a_table_is_of_the_job_or_of_another(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """Rows without a name are the job's own where no name is asked."""
    path = tmp_path_factory.mktemp("runs") / "team.csv"
    path.write_text("\n".join(["job,machine,step", *(f"{name},T4,1s" for name in names)]))
    runs = read_runs(path)
    bare = {name.strip() for name in names}
    for name in bare - {""}:
        own, others = runs_of(path, runs, name)
        assert (len(own), len(own) + len(others)) == (
            sum(one.strip() == name for one in names), len(names),
        )  # fmt: skip
    if "" in bare:
        assert len(runs_of(path, runs)[0]) == names.count("")


def test_the_verb_hears_other_jobs_of_the_table(tmp_path: Path) -> None:
    path, alone = tmp_path / "team.csv", tmp_path / "alone.csv"
    path.write_text(TABLE)
    alone.write_text("machine,step,batch\nT4,150ms,32\n")
    words = ["predict", "--gpu", "A10G", "--precision", "fp32", "--json"]
    team = CLI.invoke(app, [*words, "--runs", str(path), "--runs-of", "vit"])
    own = CLI.invoke(app, [*words, "--runs", str(alone)])
    assert team.exit_code == own.exit_code == 0, team.output
    with_team, without = (json.loads(one.stdout)["step_time_s"] for one in (team, own))
    # bert takes 0.71 of its time on the other card, and so does vit: nearer than without.
    assert abs(math.log(with_team["value"] / (0.15 * 22 / 31))) < abs(
        math.log(without["value"] / (0.15 * 22 / 31))
    )
    assert with_team["high"] / with_team["low"] < without["high"] / without["low"]


def test_a_job_of_the_table_that_is_not_told_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "team.csv"
    path.write_text(TABLE)
    refused = CLI.invoke(app, ["predict", "--gpu", "A10G", "--runs", str(path)])
    assert isinstance(refused.exception, UsageError)
    with pytest.raises(UsageError, match="goes with --runs"):
        JobSpec(runs_of="vit")
    path.write_text(TABLE + "gpt,Z9000,1s,32\n")
    with pytest.raises(UsageError, match="Z9000"):
        job_of(JobSpec(runs=str(path), runs_of="vit"))


def test_beside_a_model_only_the_jobs_own_runs_are_heard(tmp_path: Path) -> None:
    path = tmp_path / "team.csv"
    path.write_text(TABLE)
    spec = JobSpec(runs=str(path), runs_of="bert", layers=12, hidden=768, heads=12, batch=32)
    job = job_of(spec)
    assert [one.instance_type for one in job.actuals] == ["T4", "A10G"]
    assert job.other_runs == ()
