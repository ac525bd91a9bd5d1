"""Fitted constants survive a round trip; anything else is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import ModelError
from advisor.estimate import case
from advisor.lab.fit.verbs import constants_text


def test_packaged_constants_survive_a_round_trip(tmp_path: Path) -> None:
    scaling, memory = case.scaling(), case.memory()
    for name, record in (("scaling", scaling), ("memory", memory)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "parameters.json").write_text(constants_text(record))
    assert case.scaling(tmp_path / "scaling") == scaling
    assert case.memory(tmp_path / "memory") == memory


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "{}",
        '{"schema_version": 99, "parameters": {}}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "parameters": {"collectives": {}}}',
        '{"schema_version": 1, "parameters": {"slack": 1.1}}',
    ],
)
def test_unreadable_constants_are_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "parameters.json").write_text(text)
    for read in (case.scaling, case.memory):
        with pytest.raises(ModelError, match=r"cannot use") as caught:
            read(tmp_path)
        assert "advisor train" in caught.value.hint


def test_missing_constants_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot use"):
        case.memory(tmp_path)
