"""Protocols score the product: what they ask is what a user's question is answered with."""

from __future__ import annotations

import numpy as np
import pytest

from advisor import data
from advisor.catalogue import Catalogue
from advisor.estimate.case import constants
from advisor.estimate.knowledge.layout_model import load
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.lab.fit.described_columns import MeasuredStep
from advisor.lab.fit.layout_rows import LayoutRows, known_part, read
from advisor.lab.fit.layouts import is_dense_training, predicted_s
from advisor.lab.score import asked as asking_product
from advisor.lab.score.described import OPERATORS, SHAPES, answer
from advisor.machines.devices import suite_device
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.setup import DEFAULT_SETUP, Transformer
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.step.describe import transformer_work


@pytest.fixture(scope="module")
def rows() -> LayoutRows:
    found = read(data.measurements(None))
    # Every eighth row: all tables, a few seconds.
    return found.take(np.arange(0, len(found), 8))


def test_the_product_and_the_fit_time_measured_layouts_alike(rows: LayoutRows) -> None:
    parameters = load().parameters
    parts = {gpu: known_part(str(gpu)) for gpu in np.unique(rows.gpu)}
    # Cards whose rate nobody measured are timed by their operators where their family was fitted.
    by_operators = [
        gpu
        for gpu, one in parts.items()
        if one is not None
        and one.is_inferred
        and one.architecture in constants().device.fitted_architectures
    ]
    rows = rows.take(~np.isin(rows.gpu, by_operators))
    asked, fitted = asking_product.step_s(rows, parameters), predicted_s(rows, parameters)
    on_device = is_dense_training(rows) | (np.asarray(rows.shapes.trained_share) == 0)
    np.testing.assert_allclose(asked[on_device], fitted[on_device], rtol=1e-9)
    # The product knows the host link of a card, the fit one for all.
    np.testing.assert_allclose(asked, fitted, rtol=0.02)


def test_other_constants_reach_the_answer(rows: LayoutRows) -> None:
    model = load()
    table = str(rows.table[0])
    some = rows.take(rows.table == table)
    left_out = asking_product.step_s(some, model.without(table))
    assert not np.allclose(left_out, asking_product.step_s(some, model.parameters), rtol=1e-6)


def test_every_way_to_ask_answers_or_says_why_not(rows: LayoutRows) -> None:
    some = rows.take(np.arange(0, len(rows), 5))
    for how in ("plain", "told the stack"):
        said = asking_product.ask_rows(some, load(), how=how)
        is_fine = np.isin(said.status, ("ok", asking_product.IN_HOST_MEMORY))
        assert (is_fine == said.is_answered).all()
        assert said.is_answered.mean() > 0.5
        answered = said.is_answered
        assert (said.low_s[answered] < said.step_s[answered]).all()
        assert (said.step_s[answered] < said.high_s[answered]).all()


def test_a_plain_question_holds_no_word_of_the_software(rows: LayoutRows) -> None:
    """Beside the model, batch and machines: degrees that split it, and the micro-batch."""
    for row in range(0, len(rows), 7):
        plain = asking_product.typed_row(rows, row, how="plain")
        assert plain.setup == {}
        assert set(plain.space.fixed) <= {"tp", "pp", "cp", "ep", "micro_batch"}  # type: ignore[union-attr]
        told = asking_product.typed_row(rows, row, how="told the stack")
        assert told.setup["stack"] == rows.stack[row]
        assert (told.transformer, told.global_batch) == (plain.transformer, plain.global_batch)


@pytest.mark.parametrize(
    ("gpu", "precision", "law"),
    [("A100-SXM4-80GB", "bf16", SHAPES), ("A100-SXM4-80GB", "fp32", OPERATORS)],
)
def test_a_measured_step_is_answered_as_step_columns_answers(
    gpu: str, precision: str, law: str
) -> None:
    model = Transformer(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=32000)
    work = transformer_work(model, micro_batch=4, precision=precision, setup=DEFAULT_SETUP)  # type: ignore[arg-type]
    device = suite_device(gpu)
    assert device is not None
    asking = Predictor(Catalogue.load(with_overrides=False), learned=None)
    step = MeasuredStep(
        seconds=1.0, operators=work.operators, work=work, device=device, is_half=True,
        has_update=True, model="gpt", family="gpt", suite="made up",
    )  # fmt: skip
    found = answer(asking, step, is_left_out=False)
    columns = asking.step_columns(
        described_job(work, name="gpt"),
        np.array([0]),
        np.array([1]),
        fleet=lone_fleet(device, 1, asking.catalogue.accelerators[device.name]),
        space=SearchSpace(micro_batch=4, zero_stages=(0,), recomputes=("none",), offloads=()),
    )
    assert found.step_s == pytest.approx(float(columns.step_s[0]), rel=1e-9)
    assert found.log_sd == pytest.approx(float(columns.log_sd[0]), rel=1e-9)
    assert found.law == law


def test_a_left_out_device_is_known_by_its_specifications_alone() -> None:
    model = Transformer(layers=4, hidden=2048, heads=16, sequence=2048, vocabulary=32000)
    work = transformer_work(model, micro_batch=8, precision="fp16")
    device = suite_device("RTX-A6000")  # whose shapes are better known than a V100's
    assert device is not None
    asking = Predictor(Catalogue.load(with_overrides=False), learned=None)
    step = MeasuredStep(
        seconds=1.0, operators=work.operators, work=work, device=device, is_half=True,
        has_update=False, model="gpt", family="gpt", suite="made up",
    )  # fmt: skip
    known, unknown = (answer(asking, step, is_left_out=out) for out in (False, True))
    assert unknown.operators_s != known.operators_s
    # What the shapes make of a rate that was measured, its operators make of its datasheet.
    assert (known.law, unknown.law) == (SHAPES, OPERATORS)
    assert unknown.log_sd > known.log_sd
