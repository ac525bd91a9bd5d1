"""Every Python snippet runs or resolves; every documented file is read by its real parser."""

import ast
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documentation import ROOT, Block, blocks, pages

from advisor.ask import ALIASES, ENTRIES, Question, read_question, stated
from advisor.catalogue import Catalogue
from advisor.cli.commands import all_in_force
from advisor.cli.program import VERBS, load_verb
from advisor.jobs.describe import read_model
from advisor.jobs.runs import read_runs, runs_of
from advisor.machines.cluster import read_cluster
from advisor.planners.spot.availability import SpotTrace
from advisor.records import read_records
from advisor.records.importers.job_tables import read_cluster_trace
from advisor.records.importers.node_shares import read_node_shares
from advisor.records.traces import read_spot_traces

# Pages whose Python blocks stand alone: they are run. Others are held to their imports.
RUN = ("docs/planner/", "docs/adding_a_way.md", "docs/adding_a_predictor.md")
BLOCKS = list(blocks("python"))
PYTHON = [pytest.param(block, id=block.where) for block in BLOCKS]
ALONE = [pytest.param(b, id=b.where) for b in BLOCKS if b.page.startswith(RUN)]


@pytest.mark.parametrize("block", ALONE)
def test_snippets_that_stand_alone_run(block: Block) -> None:
    exec(compile(block.text, block.where, "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("block", PYTHON)
def test_every_snippet_compiles_and_its_imports_resolve(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text, block.where)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block.where}: {node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)


@pytest.mark.parametrize("block", PYTHON)
def test_keywords_of_questions_in_snippets_exist(block: Block) -> None:
    known = {*ENTRIES, *ALIASES, "job", "question"}
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "recommend":
            assert {k.arg for k in node.keywords} <= known, block.where


def test_the_two_commands_of_own_clusters_and_planners_have_their_arguments() -> None:
    """Snippets that need a recording are not run; their calls fit the functions' signatures."""
    import inspect

    import advisor

    for block in blocks("python"):
        for node in ast.walk(ast.parse(block.text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            function = getattr(advisor, node.func.id, None)
            if not inspect.isfunction(function):
                continue
            parameters = inspect.signature(function).parameters
            if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                continue
            assert {k.arg for k in node.keywords} <= {*parameters}, (
                f"{block.where}: {node.func.id}"
            )


def one(title: str, page: str = "docs/formats.md") -> str:
    (found,) = [b.text for b in blocks("toml", "json", "csv", "text") if
                b.title == title and b.page == page]  # fmt: skip
    return found


def parsed(
    tmp_path: Path, title: str, read: Callable[[Path], Any], page: str = "docs/formats.md"
) -> Any:
    path = tmp_path / title
    path.write_text(one(title, page), encoding="utf-8")
    return read(path)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


@pytest.mark.parametrize("name", ["advisor.toml", "pyproject.toml"])
def test_project_files(tmp_path: Path, name: str) -> None:
    ((place, answers),) = parsed(tmp_path, name, lambda _: stated(tmp_path, {}), "docs/asking.md")
    assert place.endswith(name)
    question = Question.read(answers, names=ENTRIES)
    assert question.job.model == "llama/" or question.constraints.budget_usd == 1500.0


def test_the_project_files_of_the_page_on_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_verbs,) = (b for b in blocks("toml") if b.page == "docs/asking.md" and not b.title)
    (tmp_path / "advisor.toml").write_text(of_verbs.text)
    monkeypatch.chdir(tmp_path)
    named, variables = all_in_force({}, load_verb, VERBS)
    assert {one.name for one in named} >= {"simulate.spot.restart", "train.models.split"}
    page = pages()["docs/asking.md"]
    assert set(re.findall(r"ADVISOR_[A-Z]+_[A-Z]+_[A-Z]+", page)) <= variables


def test_question_files(tmp_path: Path) -> None:
    answers = parsed(tmp_path, "question.json", read_question)
    question = Question.read(answers, names=ENTRIES)
    assert question.job.tokens == 15e9
    assert question.layout.zero == 1


def test_names_of_questions_are_all_listed_and_no_others() -> None:
    table = pages()["docs/asking.md"].split("| part | record | names |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", table))
    missing = set(ENTRIES) - named - {"experts_per_token", "catalogue", "objective", "completion"}
    assert not missing, missing
    assert named <= {*ENTRIES, *ALIASES}, named - {*ENTRIES, *ALIASES}


def test_model_configurations(tmp_path: Path) -> None:
    parsed(tmp_path, "config.json", lambda path: path)
    model = read_model(tmp_path / "config.json")
    assert model is not None
    assert json.loads(one("config.json"))["num_hidden_layers"] == 32


def test_clusters_in_both_forms_and_as_text(tmp_path: Path, catalogue: Catalogue) -> None:
    def read(path: Path) -> Any:
        return read_cluster(str(path), catalogue)

    cluster = parsed(tmp_path, "cluster.toml", read)
    text = re.search(r'--cluster "([^"]+)"', pages()["docs/formats.md"])
    assert text is not None
    same = read_cluster(text[1], catalogue)
    assert [(g.label, g.devices) for g in cluster] == [(g.label, g.devices) for g in same]
    assert sum(g.devices for g in parsed(tmp_path, "cluster.json", read)) == 16


def test_overrides_are_applied(tmp_path: Path) -> None:
    path = tmp_path / "overrides.csv"
    path.write_text(one("overrides.csv", "docs/prices.md"))
    found = Catalogue.load(overrides=path)
    own = found.instance_type("dgx-a100", provider="lab")
    assert own.accelerator_count == 8


@pytest.mark.parametrize(
    ("title", "names", "most"),
    [("spot-counts.csv", 1, 1), ("spot-events.csv", 1, 2), ("spot-pools.csv", 2, 2)],
)
def test_availability_of_spot_machines(tmp_path: Path, title: str, names: int, most: int) -> None:
    traces: list[SpotTrace] = parsed(tmp_path, title, read_spot_traces)
    assert len(traces) == names
    assert max(trace.nodes for trace in traces) == most


@pytest.mark.parametrize(
    ("title", "devices", "duration_s"),
    [
        ("sacct.txt", [2, 4], [7200, 3600]),
        ("jobs.json", [8], [3600]),
        ("jobs.csv", [1, 4], [3600, 7200]),
    ],
)
def test_jobs_of_a_cluster(
    tmp_path: Path, title: str, devices: list[int], duration_s: list[float]
) -> None:
    jobs = parsed(tmp_path, title, read_cluster_trace).jobs
    assert jobs.devices.tolist() == devices
    assert jobs.duration_s.tolist() == duration_s


def test_the_run_record_of_the_page_is_one(tmp_path: Path) -> None:
    (block,) = [b for b in blocks("json") if b.page == "docs/formats.md" and not b.title]
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(json.loads(block.text)) + "\n")
    (record,) = read_records(path)
    assert record.job.family == "resnet"
    assert record.cost_usd == 0.00407


def test_runs_of_a_job(tmp_path: Path) -> None:
    runs = parsed(tmp_path, "runs.csv", read_runs)
    assert [(one.instance_type, one.step_s, one.batch) for one in runs] == [
        ("g5.xlarge", 0.31, 32), ("V100-SXM2-16GB", 0.22, 32)
    ]  # fmt: skip


def test_runs_of_a_team(tmp_path: Path) -> None:
    runs = parsed(tmp_path, "team.csv", read_runs)
    own, others = runs_of(tmp_path / "team.csv", runs, "vit")
    assert [one.instance_type for one in own] == ["g4dn.xlarge"]
    assert [one.step_s for one in others] == [0.31, 0.22]


def test_free_shares_of_nodes(tmp_path: Path) -> None:
    found = parsed(tmp_path, "nodes.csv", read_node_shares)
    assert found.names == ("gpu-a", "gpu-b")
    assert found.shares[:, 0].tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert found.shares[:, 1].tolist() == [1.0, 1.0, 1.0, 0.75, 0.75]


def test_every_titled_block_is_read_by_a_test() -> None:
    source = Path(__file__).read_text()
    titles = {b.title for b in blocks("toml", "json", "csv", "text") if b.title}
    assert titles
    assert {t for t in titles if f'"{t}"' not in source} == set()


def test_tests_and_files_named_in_pages_exist() -> None:
    """``tests/test_x.py::test_y`` and ``planners/...py`` in code spans."""
    wrong = []
    for page, text in pages().items():
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
            source = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
            if not source or (name and f"def {name}(" not in source):
                wrong.append(f"{page}: {path} {name}")
        named = re.findall(
            r"`((?:planners|collectors|advisor|lab|examples|datasets)/[\w./-]+)`", text
        )
        wrong += [f"{page}: {path}" for path in named if not (ROOT / path).exists()]
    assert not wrong, "\n".join(wrong)
