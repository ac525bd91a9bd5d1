"""Models asked for by name: what a name stands for, near misses, completion, every door."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from documentation import ROOT
from typer.testing import CliRunner

from advisor.ask import JobSpec
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.jobs import Job, job_from_spec
from advisor.jobs.named import named_model
from advisor.planners.core import PlanningError

FOLDER: Final = ROOT / "datasets" / "models"
RUN: Final = CliRunner()
# Of what the issue trackers of trainers are full.
ASKED_FOR: Final = (
    "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama-2-7b", "llama-3.3-70b", "gpt2",
    "mistral-7b", "Mixtral-8x7B", "qwen2.5-7b", "qwen3-8b", "gemma-2-9b", "phi-3-mini",
    "pythia-1.4b", "smollm2-135m", "tinyllama", "falcon3-7b", "opt-1.3b", "flan-t5-xl",
    "t5-base", "olmo-2-7b", "bart-large", "whisper-large-v3", "whisper-small",
    "resnet-50", "sd-1.5", "sdxl",
)  # fmt: skip


def rows(name: str = "models") -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def names(row: dict[str, str]) -> list[str]:
    return [row["id"], *row["other_names"].split()]


def job(name: str, **more: Any) -> Job:
    return job_from_spec(JobSpec(model=name, total_steps=10.0, **more))


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_name_is_answered_with_its_own_count_or_says_what_to_do_instead() -> None:
    counted, refused, wrong = 0, {}, {}
    for row in rows():
        try:
            work = job(row["id"]).work
        except PlanningError as error:
            refused[row["id"]] = f"{error}: {error.hint}"
            continue
        assert work is not None
        counted += 1
        if work.parameters != pytest.approx(int(row["parameters"]), rel=1e-3):
            wrong[row["id"]] = work.parameters / int(row["parameters"]) - 1
    assert not wrong
    assert counted >= 300
    for name, said in refused.items():
        assert said.startswith(f"{name.rpartition('/')[2]}: ")
        assert "advisor profile" in said
        assert "\n" not in said


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_people_ask_for_is_answered(name: str) -> None:
    work = job(name, batch=8).work
    assert work is not None
    assert work.parameters > 0


def test_a_name_in_any_form_is_the_same_job() -> None:
    long = job("meta-llama/Llama-3.1-8B", batch=16)
    assert long.name == "Llama-3.1-8B"
    for short in ("llama-3.1-8b", "LLAMA-3.1-8B", "Llama_3.1_8b", "meta-llama/llama-3.1-8b"):
        assert job(short, batch=16) == long
    instruct = job("llama-3.1-8b-instruct", batch=16)
    assert instruct.name == "Llama-3.1-8B-Instruct"
    assert replace(instruct, name=long.name) == long


def test_no_two_models_share_a_name() -> None:
    for row in rows():
        for name in names(row):
            for text in {name, name.rpartition("/")[2], name.upper(), name.replace("-", "_")}:
                found = named_model(Path(text))
                assert found is not None
                assert found[1].items() >= json.loads(row["config"]).items(), text


def test_a_misspelt_name_names_the_right_one_and_an_unknown_one_the_file_to_give() -> None:
    for row in rows():
        name = row["id"].rpartition("/")[2]
        misspelt = f"{name[:2]}{name[1:]}"
        with pytest.raises(UsageError) as told:
            named_model(Path(misspelt))
        assert name in told.value.hint
        assert "config.json" in told.value.hint
    with pytest.raises(UsageError, match="no model is known as 'acme/Zyzzyva-9'") as told:
        named_model(Path("acme/Zyzzyva-9"))
    assert "did you mean" not in told.value.hint
    assert "--model path/config.json" in told.value.hint
    answered = RUN.invoke(app, ["predict", "--model", "lama-3.1-8b", "--gpu", "L4"])
    assert isinstance(answered.exception, UsageError)
    assert answered.exception.hint.startswith("did you mean Llama-3.1-8B")


def test_a_path_wins_over_a_name(tmp_path: Path) -> None:
    other = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 128,
             "vocab_size": 100}  # fmt: skip
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(other))
    named = job("openai-community/gpt2", batch=8).work
    found = job("gpt2", batch=8).work
    assert named is not None
    assert found is not None
    assert found.parameters < named.parameters / 100
    for absent in ("bert-base-uncased.json", "a/b/c", str(tmp_path / "bert-base-uncased")):
        with pytest.raises(UsageError, match="cannot read the model"):
            job(absent)


def test_names_are_completed_without_loading_torch() -> None:
    line = (
        "import sys; from advisor.jobs.named import names_from; "
        "print(len(names_from('')), 'torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, cwd=ROOT
    )
    number, *loaded = done.stdout.split()
    assert int(number) > 500
    assert loaded == ["False", "False"]


SMALL: Final = ("--model", "smollm2-135m", "--batch", "32", "--sequence", "1024")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", *SMALL, "--gpu", "A100"),
        ("plan", *SMALL, "--cluster", "4xA100-80GB:nvlink"),
        ("recommend", *SMALL, "--tokens", "1B", "--gpus", "H100"),
        ("advise", *SMALL, "--tokens", "1B", "--gpus", "H100"),
        ("export", *SMALL, "--tokens", "1B", "--gpus", "H100", "--to", "skypilot"),
    ],
)
def test_every_verb_takes_a_name(words: tuple[str, ...], tmp_path: Path) -> None:
    answered = RUN.invoke(app, list(words))
    assert answered.exit_code == 0, answered.output
    said = answered.output + "".join(f.read_text() for f in tmp_path.rglob("*") if f.is_file())
    assert "SmolLM2-135M" in said or "30 layers of 576" in said


def test_settings_and_python_take_a_name(tmp_path: Path) -> None:
    import advisor

    (tmp_path / "advisor.toml").write_text('model = "gpt2"\nbatch = 8\n')
    answered = RUN.invoke(app, ["predict", "--gpu", "A100", "--save-job", "job.json"])
    assert answered.exit_code == 0, answered.output
    kept = RUN.invoke(app, ["predict", "--job", "job.json", "--gpu", "A100", "--json"])
    assert json.loads(kept.stdout)["job"] == "gpt2"
    found = advisor.recommend(
        model="meta-llama/Llama-3.1-8B", tokens="1B", gpus="H100", max_nodes=2
    )
    assert found.to_record()["run"] == "Llama-3.1-8B"


def test_every_row_has_a_source_and_the_readme_counts_them() -> None:
    table = rows()
    stated = {one["source"]: one for one in rows("sources")}
    assert {row["source"] for row in table} <= stated.keys()
    assert {row["published_by"] for row in table} - {""} <= stated.keys()
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for one in stated.values():
        assert one["licence"]
        assert one["as_of"]
        assert one["licence"] == "facts" or one["what"].partition(":")[0] in notice
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    ids = sum("/" in name for row in table for name in names(row))
    assert f"{len(table)} rows with {ids} ids" in page
    assert f"{len(table)} models" in (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    counts = re.findall(r"^\| [\w -]+ \| (\d+) \|", page, re.MULTILINE)
    assert sum(map(int, counts)) == len(table)
