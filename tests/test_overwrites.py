"""A file that nobody named is never replaced, and a folder never with what is somebody's in it.

What exports write is in ``test_export_writes.py``, the report's page in ``test_report.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import AdvisorError, ModelError
from advisor.learned import registry
from advisor.learned.linear import Ridge


def refused(*words: str) -> AdvisorError:
    found = CliRunner().invoke(app, list(words)).exception
    assert isinstance(found, AdvisorError)
    assert (found.exit_code, bool(found.hint)) == (1, True)
    return found


@pytest.mark.parametrize("names", [["thesis.tex"], ["model.json", "notes.md"], ["features.json"]])
def test_a_folder_of_somebodys_is_not_replaced_by_a_model(
    names: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        assert "replaced as a whole" in str(refused("train", "models", "--out", str(place)))
        with pytest.raises(ModelError):
            registry.save(place, Ridge(), features={}, metrics={}, card="")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict.fromkeys(
        [*names, "file"], "mine"
    )


def test_an_import_adds_to_records_and_replaces_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("source.csv")
    source.write_text("time_s\n31\n30\n")
    words = ["runs", "import", "csv", "source.csv"]
    for _ in range(2):  # the same once more is no loss
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
    Path("records.jsonl.gz").write_bytes(b"mine")
    assert "cannot read records.jsonl.gz" in str(refused(*words))
    assert Path("records.jsonl.gz").read_bytes() == b"mine"
    done = CliRunner().invoke(app, [*words, "--out", "other.jsonl.gz"])
    assert done.exit_code == 0, done.output
