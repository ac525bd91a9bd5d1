"""Pages that tests look at: of a recorded run, a described pipeline, and without an answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from advisor import api
from advisor.ask import Question
from advisor.estimate.predictor import Predictor

RUN = Path(__file__).parent / "golden" / "run-schema-1"
RECORDED = {"run": str(RUN), "cloud": "verda", "total_steps": 2_000_000, "here_price": 0.5}
PIPELINE = {
    "layers": 32, "hidden": 4096, "heads": 32, "tokens": "1B", "pp": 4, "gpus": "A100-SXM4-80GB",
    "max_nodes": 2,
}  # fmt: skip
IMPOSSIBLE = {**PIPELINE, "deadline": "1s"}


@cache
def predictor() -> Predictor:
    """One for all tests: it keeps the catalogue."""
    return Predictor()


def question(asked: dict[str, Any]) -> Question:
    return Question.read(asked)


def data_of(asked: dict[str, Any]) -> dict[str, Any]:
    """What the page of a question shows."""
    return api.report_data(question(asked), predictor=predictor(), made="2026-11-22 12:00 UTC")
