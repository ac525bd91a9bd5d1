"""What an export writes: no file of anybody's is replaced, no value makes a line."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from exporting import row_on
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.ask import Question
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.export.target import Exported
from advisor.export.targets import TARGETS, NotOverwrittenError, export_to, write
from advisor.recipes import directives

OWNS = {"vertex": "gcp", "azureml": "azure"}
MODEL = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 128, "batch": 64, "tokens": "1B"}
MINE = b"#!/bin/bash\necho mine\n"


@pytest.fixture(scope="module")
def answers(predictor: Predictor) -> tuple[Any, dict[str, Any]]:
    """A described job, and its answer."""
    asked = Question.read({**MODEL, "cloud": "aws"})
    job = api.job_of(asked.job, asked.setup, catalogue=lambda: predictor.catalogue)
    return job, json.loads(json.dumps(api.answer(asked).to_record()))


@pytest.fixture(scope="module")
def made(answers: tuple[Any, dict[str, Any]], predictor: Predictor) -> Any:
    """How a target exports the answer: with several machines, and with values."""

    def exported(target: str, **values: str) -> Exported:
        job, record = answers
        one = row_on(record, OWNS.get(target, "aws"), count=2)
        return export_to(one, target, job=job, predictor=predictor, values=values)

    return exported


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("target", TARGETS)
def test_no_file_is_replaced_that_no_export_wrote(target: str, made: Any, tmp_path: Path) -> None:
    one = made(target)
    for name in one.files:
        own = tmp_path / name.replace(".", "-")
        own.mkdir()
        (own / name).write_bytes(MINE)
        with pytest.raises(NotOverwrittenError, match=f"{name} exists and is no earlier") as no:
            write(one, own)
        assert (no.value.exit_code, tree(own)) == (1, {name: MINE})  # nothing is half written
        first = next(iter(one.files))
        if name != first:  # a name that the user did not give
            with pytest.raises(NotOverwrittenError):
                write(one, own / "named")
            assert tree(own) == {name: MINE}
        write(one, own, force=True)
        assert {k: v.decode() for k, v in tree(own).items()} == one.files


@pytest.mark.parametrize("target", TARGETS)
def test_an_earlier_export_is_replaced(target: str, made: Any, tmp_path: Path) -> None:
    """The same one always; another one where a comment can say that it is one."""
    earlier, later = made(target), made(target, script="other.py")
    for one in (earlier, earlier, later):
        paths = write(one, tmp_path)
        assert {p.name: p.read_text() for p in paths.values()} == one.files
    for name in earlier.files:
        if name != "ds_config.json":  # a comment cannot be written into it
            (tmp_path / name).write_text(earlier.files[name] + "\n")
    write(later, tmp_path)


def test_the_verb_refuses_in_one_line_and_makes_folders(
    answers: tuple[Any, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = tmp_path / "answer.json"
    stored.write_text(json.dumps(row_on(answers[1], "aws")))
    (tmp_path / "run.sh").write_bytes(MINE)
    (tmp_path / "train.py").write_bytes(MINE)
    words = ["export", "--to", "sagemaker", "--from", "answer.json", "-o"]
    for named in ("x", "train.py"):
        before = tree(tmp_path)
        done = CliRunner().invoke(app, [*words, named])
        assert isinstance(done.exception, NotOverwrittenError)
        assert "run.sh" in str(done.exception)
        assert "--force" in done.exception.hint
        assert tree(tmp_path) == before
    said = CliRunner().invoke(app, [*words, "new/folder/"])
    assert said.exit_code == 0, said.output
    assert sorted(os.listdir("new/folder")) == ["job.json", "run.sh"]
    assert "new/folder/run.sh" in shlex.split(said.stderr.rpartition("run: ")[2])
    assert CliRunner().invoke(app, [*words, "x", "--force"]).exit_code == 0
    assert tree(tmp_path)["run.sh"] != MINE
    assert CliRunner().invoke(app, [*words, "-"]).exit_code == 0
    clash = CliRunner().invoke(app, [*words, "other/run.sh"]).exception
    assert isinstance(clash, UsageError)
    assert "is the name of a file that is written beside it" in str(clash)


def test_what_is_no_file_is_not_written_over(made: Any, tmp_path: Path) -> None:
    one = made("torchrun")
    (beside,) = [name for name in one.files if name != "run.sh"]
    for is_folder in (True, False):
        if is_folder:
            (tmp_path / beside).mkdir()
        else:
            (tmp_path / beside).symlink_to(tmp_path / "nowhere")
        with pytest.raises(NotOverwrittenError):
            write(one, tmp_path / "x")
        assert not (tmp_path / "x").exists()
        assert not (tmp_path / "nowhere").exists()
        os.rename(tmp_path / beside, tmp_path / f"away-{os.urandom(3).hex()}")
    (tmp_path / "x").touch()  # as ``mktemp`` does
    write(one, tmp_path / "x")


@settings(max_examples=60)
@given(data=st.data(), target=st.sampled_from(list(TARGETS)))
def test_no_value_makes_a_line(made: Any, data: st.DataObject, target: str) -> None:
    """Of no target's files: it is refused, or stays where a plain one stands."""
    name = data.draw(st.sampled_from([*TARGETS[target].blanks, "script", "framework"]))
    ends = st.sampled_from(["\n", "\r", "\x1b[2J", "\u2028", "\x85", "\n#SBATCH --x", "\n- a: b"])
    text = data.draw(st.one_of(st.text(), st.tuples(st.text(), ends, st.text()).map("".join)))
    plain = re.sub("[^,]+", "plain", text) if name == "hosts" else "plain"  # a line a machine
    lines = lines_of(made(target, **{name: plain}))
    try:
        one = made(target, **{name: text})
    except UsageError as refused:
        is_readable, code = False, refused.exit_code
    else:
        is_readable, code = True, 2
    assert code == 2
    assert name == "script" or text.isprintable() == is_readable
    if not is_readable:
        return
    assert all(new <= old for new, old in zip(lines_of(one), lines, strict=True))
    assert len(one.run.splitlines()) == 1


def lines_of(one: Exported) -> list[int]:
    """The lines of each file, by every sign that ends one."""
    return [len(text.splitlines()) for text in one.files.values()]


@given(text=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1))
def test_a_value_is_one_option_of_a_batch_script(made: Any, text: str) -> None:
    """And no other one: neither by a space nor by a sign of comments."""
    if not text.isprintable():
        return
    plain = directives(made("slurm", partition="plain").files["job.sbatch"])
    found = directives(made("slurm", partition=text).files["job.sbatch"])
    assert found == plain | {"partition": text}


def test_a_line_break_is_refused_in_one_line(tmp_path: Path) -> None:
    words = ["export", "--to", "slurm", "--layers", "4", "--hidden", "64", "--heads", "4"]
    done = CliRunner().invoke(app, [*words, "--set", "partition=x\n#SBATCH --account=other"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2
    assert "\n" not in str(done.exception)
