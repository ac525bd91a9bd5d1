"""One record for the question: every way in gives the same one, and nothing said is ignored."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.ask import (
    ALIASES,
    CLUSTER,
    CONSTRAINTS,
    ENTRIES,
    JOB,
    LAYOUT,
    OUTPUT,
    PANELS,
    SETUP,
    Constraints,
    LayoutRequest,
    Question,
    SetupRequest,
    flag_of,
    layout_space,
    merged,
)
from advisor.cli.options import ask
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.knowledge.known import find_job
from advisor.jobs.load import job_from_spec
from advisor.planners.core.setup import TrainingSetup
from advisor.planners.layouts.problem import SearchSpace

RUN = CliRunner()
ROOT = Path(__file__).resolve().parents[1]
ALL = (*JOB, *CONSTRAINTS, *LAYOUT, *SETUP, *CLUSTER, "catalogue", "objective", "completion")
SMALL: dict[str, Any] = {"layers": 2, "hidden": 128, "heads": 2, "sequence": 64}


def whole(most: int = 10**6) -> st.SearchStrategy[int]:
    return st.integers(1, most)


def positive() -> st.SearchStrategy[float]:
    return st.floats(1e-6, 1e15)


WORD = st.text("abcdefgh-", min_size=1, max_size=8)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{n: whole() for n in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary",
                            "experts", "experts_per_token", "sequence", "batch", "top", "tp", "pp",
                            "cp", "ep", "micro_batch", "accumulate", "lora")},
    **{n: positive() for n in ("tokens", "data", "data_rate", "results", "budget", "deadline",
                               "max_price", "cluster_price")},
    **{n: st.booleans() for n in ("gated", "spot", "mixed", "checkpoints", "known_network",
                                  "probes", "swap", "overlap", "cluster_consolidated")},
    **dict.fromkeys(("region", "cluster", "cluster_trace", "cluster_policy", "catalogue"), WORD),
    "precision": st.sampled_from(["fp32", "bf16", "fp8"]),
    "validation": st.floats(0, 1),
    "cloud": st.lists(st.sampled_from(["aws", "gcp", "azure"]), min_size=1, unique=True),
    "gpus": st.sampled_from(["A100:8", "L4", "A100:40GB..80GB:1..8", "24GB..:1", "H100,H200:..4"]),
    "max_nodes": whole(4096),
    "coverage": st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    "zero": st.integers(0, 3),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "kernels": st.sampled_from(["eager", "fused", "compiled"]),
    "attention": st.sampled_from(["flash", "unfused"]),
    "offload": st.booleans() | st.lists(
        st.sampled_from(["optimizer", "parameters", "activations"]), min_size=1, unique=True
    ),
    "loss": st.sampled_from(["eager", "fused", "chunked"]),
    "optimizer": st.sampled_from(["adamw", "adamw-8bit", "paged-adamw-8bit", "muon", "sgd"]),
    "weights": st.sampled_from(["fp32", "bf16"]),
    "base_bits": st.sampled_from([4, 8, 16]),
    "frozen": st.floats(0, 0.99),
    "cluster_devices": st.lists(whole(64), min_size=1, max_size=3),
    "objective": st.sampled_from(["time", "cost"]),
    "completion": st.sampled_from(["on-demand", "spot", "spot-with-fallback", "elastic-spot"]),
}  # fmt: skip
LAYERS = VALUES.pop("layers")
MAPPINGS = st.fixed_dictionaries({"layers": LAYERS}, optional=VALUES)


@given(MAPPINGS)
def test_a_question_survives_json(given_values: dict[str, Any]) -> None:
    question = Question.read(given_values)
    again = Question.read(json.loads(json.dumps(question.to_record())))
    assert again == question


@given(MAPPINGS)
def test_what_is_said_is_recorded_and_nothing_else(given_values: dict[str, Any]) -> None:
    record = Question.read(given_values).to_record()
    assert record.keys() - {"schema_version"} <= given_values.keys()
    assert "layers" in record


def as_flags(values: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            both = ENTRIES[name].flags or (f"{flag}/--no-{flag[2:]}",)
            words.append(both[0].partition("/")[0 if value else 2])
        elif isinstance(value, list):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, repr(value) if isinstance(value, float) else str(value)]
    return words


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Question]:
    """What the verbs are asked, in a folder without a project file."""
    monkeypatch.chdir(tmp_path)
    seen: list[Question] = []

    def remember(given: Any, **options: Any) -> Question:
        seen.append(ask(given, **options))
        raise UsageError("seen", hint="")

    monkeypatch.setattr("advisor.cli.options.ask", remember)
    return seen


SAID: dict[str, Any] = {
    "layers": 4, "hidden": 64, "heads": 4, "tokens": 15e9, "deadline": 1.5, "gpus": "A100:8",
    "spot": True, "checkpoints": False, "coverage": 0.8, "tp": 2, "zero": 1, "offload": False,
    "kernels": "fused", "lora": 8, "overlap": False, "frozen": 0.25, "cluster_devices": [2, 4],
}  # fmt: skip


def test_flags_keywords_and_json_give_one_question(asked: list[Question], tmp_path: Path) -> None:
    RUN.invoke(app, ["recommend", *as_flags(SAID)])
    assert asked.pop() == Question.read(SAID)
    file = tmp_path / "question.json"
    file.write_text(json.dumps(Question.read(SAID).to_record()))
    RUN.invoke(app, ["recommend", "--question", str(file)])
    assert asked.pop() == Question.read(SAID)
    (tmp_path / "advisor.toml").write_text("".join(
        f"{name} = {json.dumps(value)}\n" for name, value in SAID.items()
    ))  # fmt: skip
    RUN.invoke(app, ["recommend"])
    assert asked.pop() == Question.read(SAID)


def test_text_means_what_the_number_means() -> None:
    words = {
        "tokens": "15B", "deadline": "1h30m", "data": "120GB", "data_rate": "100MB/s",
        "validation": "5%", "budget": "$1,000", "max_nodes": "16", "cloud": "aws, GCP",
    }  # fmt: skip
    numbers = {
        "tokens": 15e9, "deadline": 1.5, "data": 120e9, "data_rate": 100e6,
        "validation": 0.05, "budget": 1000, "max_nodes": 16.0, "cloud": ["aws", "gcp"],
    }  # fmt: skip
    assert Question.read(words) == Question.read(numbers)


@pytest.mark.parametrize(
    ("name", "near"),
    [("max_node", "max_nodes"), ("deadlin", "deadline"), ("total_step", "total_steps"),
     ("kernel", "kernels"), ("microbatch", "micro_batch")],
)  # fmt: skip
def test_a_misspelt_keyword_is_refused_with_the_nearest(name: str, near: str) -> None:
    misspelt: dict[str, Any] = {name: 1}
    with pytest.raises(UsageError, match=f"no option '{name}'") as refused:
        api.recommend(find_job(**SMALL), **misspelt)
    assert near in refused.value.hint


def test_what_a_function_does_not_understand_is_refused() -> None:
    job = find_job(**SMALL)
    others: tuple[dict[str, Any], ...] = (
        {"cluster_trace": "x.csv"},
        {"objective": "cost"},
        {"completion": "spot"},
    )
    for asked in others:
        with pytest.raises(UsageError, match="does not apply here"):
            api.recommend(job, **asked)
    with pytest.raises(UsageError, match="two jobs"):
        api.recommend(job, model="llama")
    with pytest.raises(UsageError, match="combined with a whole question"):
        api.recommend(Question(), top=3)


@pytest.mark.parametrize(
    ("given_values", "says"),
    [
        ({"run": "a", "model": "b"}, "more than one job is given: --run, --model"),
        ({"run": "a", "layers": 2}, "more than one job is given: --run, --layers"),
        ({"epochs": 3, "tokens": "15B"}, "given twice: --epochs, --tokens"),
        ({"batch": 4, "global_batch": 8}, "given twice"),
        ({"kernels": "eager", "compile": True}, "given twice"),
        ({"vocabulary": 100}, "--vocabulary goes with"),
        ({"image": 224}, "--image goes with"),
        ({"run": "a", "sequence": 10}, "--sequence goes with"),
        ({"max_nodes": 0}, "max_nodes 0 is out of range"),
        ({"max_nodes": 10**5}, "the number of nodes is out of range"),
        ({"max_nodes": 1.5}, "as a whole number"),
        ({"max_nodes": True}, "cannot read True"),
        ({"batch": 10**400}, "batch"),
        ({"spot": "yes"}, "as yes or no"),
        ({"budget": -1}, "negative"),
        ({"budget": 0}, "not a budget"),
        ({"deadline": "soon"}, "deadline: cannot read 'soon' as a duration"),
        ({"coverage": 0.7}, "not available"),
        ({"recompute": "some"}, "is unknown"),
        ({"model": 7}, "as a name"),
        ({"schema_version": 2}, "schema version 2"),
    ],
)
def test_contradictions_and_nonsense_are_refused(given_values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Question.read(given_values)
    assert says in str(refused.value)
    assert refused.value.hint


def test_flags_are_named_as_flags_and_keywords_as_keywords() -> None:
    with pytest.raises(UsageError, match=r"^--max-nodes"):
        Question.read({"max_nodes": "0"}, are_flags=True)
    with pytest.raises(UsageError, match=r"^max_nodes"):
        Question.read({"max_nodes": "0"})


PROJECT = 'model = "llama"\nsequence = 4096\ntotal_steps = 100\nmax_nodes = 4\n'


@pytest.mark.parametrize("where", ["advisor.toml", "pyproject.toml"])
def test_the_command_line_goes_before_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "[tool.advisor]\n" if where == "pyproject.toml" else ""
    (tmp_path / where).write_text(head + PROJECT)
    monkeypatch.chdir(tmp_path)
    found = ask({"max_nodes": "2", "tokens": "1B"}, names=ALL)
    assert (found.job.model, found.job.sequence, found.constraints.max_nodes) == ("llama", 4096, 2)
    assert (found.job.tokens, found.job.total_steps) == (1e9, None)
    said = capsys.readouterr().err
    assert said == f"note: {where} says model, sequence\n"
    other = ask({"run": "mine"}, names=ALL)
    assert (other.job.run, other.job.model, other.job.sequence) == ("mine", None, None)
    assert other.constraints.max_nodes == 4


def test_a_project_answers_only_what_a_verb_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "advisor.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    assert ask({}, names=JOB).constraints == Constraints()


@pytest.mark.parametrize("content", ["max_node = 4", "max_nodes = 0", "max_nodes =", "= 4"])
def test_a_wrong_project_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "advisor.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"advisor\.toml") as refused:
        ask({}, names=ALL)
    assert refused.value.hint


@given(MAPPINGS, MAPPINGS)
def test_the_later_layer_is_what_counts(first: dict[str, Any], later: dict[str, Any]) -> None:
    both = merged(first, later)
    assert {name: both[name] for name in later} == later
    assert set(both) <= set(first) | set(later)
    assert merged(first, {}) == merged({}, first) == first


@pytest.mark.parametrize("verb", ["recommend", "predict", "plan"])
def test_a_flag_has_one_name_and_one_help_in_every_verb(verb: str) -> None:
    shown = " ".join(RUN.invoke(app, [verb, "--help"], terminal_width=2000).output.split())
    names = {
        "recommend": (*JOB, *CONSTRAINTS, *LAYOUT, *SETUP, *CLUSTER, "catalogue"),
        "predict": (*JOB, *LAYOUT, *SETUP, "coverage", "catalogue", "completion", "known_network"),
        "plan": (*JOB, *LAYOUT, *SETUP, "coverage", "catalogue", "cluster", "objective"),
    }[verb]
    for name in names:
        assert flag_of(name) in shown
        assert ENTRIES[name].help in shown, name


@pytest.mark.parametrize("verb", ["recommend", "predict", "plan", "gate", "advise"])
def test_help_lists_every_option_under_its_heading(verb: str) -> None:
    """Headings stand in one order, and what a question asks under that of its entry."""
    shown = RUN.invoke(app, [verb, "--help"], terminal_width=200).output.splitlines()
    places: dict[str, str] = {}
    headings = [""]
    for line in shown:
        if line.endswith(":") and not line.startswith(" "):
            headings.append(line[:-1])
        for flag in re.findall(r"(?<= )--[a-z][\w-]*", line[:40]) if line[:3] == "  -" else ():
            places[flag] = headings[-1]
    assert [one for one in headings if one in PANELS] == [p for p in PANELS if p in headings]
    assert len(headings) > 6
    for name, entry in ENTRIES.items():
        if (flag := flag_of(name)) in places and name != "batch":
            assert places[flag] == entry.panel, flag
    assert places["--json"] == places["--help"] == OUTPUT


def test_every_option_of_a_verb_is_a_field_of_its_record() -> None:
    """Typer's own way of writing options is left to the one place that makes them."""
    texts = [path.read_text("utf-8") for path in (ROOT / "advisor").rglob("*.py")
             if "lab" not in path.parts]  # fmt: skip
    assert sum(text.count("typer.Option(") for text in texts) <= 6


def test_help_is_made_of_sentences() -> None:
    for entry in ENTRIES.values():
        assert entry.help[0].isupper()
        assert entry.help.endswith(".")
        assert len(entry.help.split()) >= 4


def test_the_names_are_those_of_the_software_and_of_the_search() -> None:
    assert {f.name for f in fields(SetupRequest)} <= {f.name for f in fields(TrainingSetup)}
    fixed = LayoutRequest(tp=2, pp=4, cp=1, ep=1, zero=2, recompute="full", micro_batch=3,
                          accumulate=5, offload=False)  # fmt: skip
    space = layout_space(fixed)
    assert space is not None
    assert (space.tp, space.pp, space.micro_batch, space.accumulation_steps) == (2, 4, 3, 5)
    assert (space.zero_stages, space.recomputes, space.offloads) == ((2,), ("full",), ())
    assert layout_space(LayoutRequest()) is None
    assert layout_space(LayoutRequest(), SearchSpace()) == SearchSpace()
    assert all(alias.name in ENTRIES for alias in ALIASES.values())


def test_tokens_are_samples_of_the_models_sequence() -> None:
    by_tokens = find_job(**SMALL, batch=16, tokens="64M")
    assert by_tokens.total_steps == 64e6 / 64 / 16
    assert by_tokens.total_source == "given: --tokens"
    same = find_job(**SMALL, batch=16, total_samples=1e6)
    assert by_tokens.total_steps == same.total_steps
    with pytest.raises(UsageError, match="how many tokens"):
        find_job(cnn="32:16:1x16:basic", tokens="1M")


def test_steps_are_steps_of_the_batch_that_is_asked_for() -> None:
    job = find_job(**SMALL, batch=8, total_samples=8000)
    assert job.total_steps == 1000
    changed = Question.read({"batch": 16, "total_steps": 500}).job
    assert job_from_spec(changed, job=job).total_steps == 500
    doubled = job_from_spec(Question.read({"batch": 16}).job, job=job)
    assert doubled.total_steps * doubled.global_batch == 8000
    named = find_job(**SMALL, batch=16, total_samples=8000)
    assert replace(doubled, total_source="") == replace(named, total_source="")


def test_what_was_taken_is_said_until_the_user_says_otherwise() -> None:
    plain = find_job(**SMALL)
    assert any("--batch" in note for note in plain.assumptions)
    for said in (
        find_job(**SMALL, batch=16),
        job_from_spec(Question.read({"batch": 16}).job, job=plain),
    ):
        assert not any("--batch" in note for note in said.assumptions)


@given(st.sampled_from(["eager", "fused", "compiled"]), st.sampled_from(["fp32", "bf16"]),
       st.sampled_from(["adamw", "sgd", "adamw-8bit"]))  # fmt: skip
def test_described_so_or_changed_to_it_is_the_same_job(
    kernels: str, weights: str, optimizer: str
) -> None:
    said = {"kernels": kernels, "weights": weights, "optimizer": optimizer}
    plain = find_job(**SMALL, precision="bf16")
    asked = Question.read(said)
    assert job_from_spec(asked.job, asked.setup, job=plain) == find_job(
        **SMALL, precision="bf16", **said
    )


def test_python_and_the_command_line_have_one_estimate(tmp_path: Path) -> None:
    said: dict[str, Any] = SMALL | {
        "batch": 16,
        "total_samples": 1e6,
        "gpus": "L4",
        "max_nodes": 1,
        "top": 3,
    }
    shell = RUN.invoke(app, ["recommend", *as_flags(said), "--json"])
    assert shell.exit_code == 0, shell.output
    python = api.recommend(**said).to_record()
    assert json.loads(shell.stdout) == python
    asked = Question.read(json.loads(json.dumps(Question.read(said).to_record())))
    assert api.recommend(asked).to_record() == python
    job = find_job(**{n: said[n] for n in (*SMALL, "batch")})
    again = api.recommend(job, total_samples="1M", gpus="L4", max_nodes=1, top=3)
    assert again.to_record()["front"] == python["front"]
