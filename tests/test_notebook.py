"""What a notebook shows: lines, tables and charts of the record; and the tutorial, run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from advisor import words
from advisor.answer import Recommendation
from advisor.ask import Constraints
from advisor.errors import UsageError
from advisor.estimate.knowledge.known import find_job as ask_job
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]
ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "examples" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def answer(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    return recommend(make_job(), Constraints(top=4), predictor=predictor)


class _Cells(HTMLParser):
    """The texts of a page's table cells, a list a row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        self._is_inside = tag == "td"

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.rows[-1].append(data)
            self._is_inside = False


def _cells(html: str) -> _Cells:
    page = _Cells()
    page.feed(html)
    return page


def test_a_notebook_shows_every_candidate_with_its_bounds(answer: Recommendation) -> None:
    page = _cells(answer._repr_html_())
    rows = [row for row in page.rows if row]
    here = [] if answer.here is None else [answer.here]
    assert len(rows) == len(answer.front) + len(here)
    for row, one in zip(rows, answer.front, strict=False):
        record = one.to_record()
        assert row[0] == str(one.rank)
        assert words.time_text(record) in row
        assert words.cost_text(record) in row
        offer, count = one.configuration.parts[0]
        assert f"{count} x {offer.instance_type}" in row


def test_a_notebook_says_first_what_to_choose(make_job: MakeJob, predictor: Predictor) -> None:
    from advisor.api import recommend as ask

    answer = ask(make_job(), predictor=predictor, top=4)
    assert answer.here is not None
    assert answer.picks
    html = answer._repr_html_()
    assert html.index(f"<b>{escape(answer.summary[0])}</b>") < html.index("<table")
    rows = [row for row in _cells(html).rows if row]
    for name, rank in answer.picks.items():
        (row,) = [row for row in rows if row[0] == str(rank)]
        assert words.PICKS[name] in row[-1]
    assert rows[-1][0] == "here"
    assert rows[-1][2] == "this machine"
    for change in answer.changes:
        assert escape(change.do) in html


def test_a_notebook_shows_a_chart_that_names_every_candidate(answer: Recommendation) -> None:
    html = answer._repr_html_()
    root = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    texts = ["".join(one.itertext()) for one in root.iter() if one.tag.endswith("text")]
    for one in answer.front:
        parts = one.to_record()["configuration"]
        assert f"{one.rank}: {words.devices_words(parts)}" in texts
    best = words.PICKS["best_value"]
    assert any(best in text for text in texts) == (answer.picks["best_value"] != "here")
    assert "script" not in _cells(html).tags


def test_what_others_wrote_is_escaped(answer: Recommendation) -> None:
    nasty = "<script>alert(1)</script>"
    html = replace(answer, run=nasty, notes=(nasty,))._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3  # the chart names the run too
    summed = replace(answer, summary=(nasty,), shared_reasons=(nasty,))._repr_html_()
    assert "<script" not in summed
    assert summed.count("&lt;script&gt;") == 2


def test_a_model_that_was_never_run_is_asked_by_keywords(
    tmp_path: Path, predictor: Predictor
) -> None:
    from advisor.api import recommend as ask

    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
              "num_attention_heads": 4, "intermediate_size": 688, "vocab_size": 32000,
              "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = ask(
        model=tmp_path, sequence=512, tokens="10M", predictor=predictor, top=3, cloud="aws"
    )
    assert answer.front
    assert "described" in repr(ask_job(model=tmp_path, tokens="10M"))
    assert len(answer.to_frame()) == len(answer.front)


def test_nothing_found_shows_the_nearest_misses(make_job: MakeJob, predictor: Predictor) -> None:
    missed = recommend(
        make_job(), Constraints(top=3, budget_usd=1e-6, providers=("aws",)), predictor=predictor
    )
    assert not missed.front
    page = _cells(missed._repr_html_())
    assert len([row for row in page.rows if row]) == len(missed.nearest)
    assert "nearest misses" in missed._repr_html_()


def test_every_repr_is_readable(
    make_job: MakeJob, predictor: Predictor, answer: Recommendation
) -> None:
    first = answer.front[0]
    offer, count = first.configuration.parts[0]
    for noun in (first.configuration, first.configuration.parts[0][0], first.cost_usd):
        assert len(repr(noun)) < 160
        assert "=" not in repr(noun)
    shown = repr(first)
    assert "\n" not in shown
    assert f"{count} x {offer.instance_type}" in shown
    assert offer.region in shown
    assert words.cost_text(first.to_record()) in shown
    assert len(repr(answer).splitlines()) == 1 + len(answer.summary) + len(answer.front)
    job = repr(make_job())
    assert "resnet50" in job
    assert "450,000 steps of 256 samples" in job
    assert "described" in repr(replace(make_job(), measured=None))
    assert len(job) < 200
    assert f"{len(predictor.catalogue.types):,} instance types" in repr(predictor)
    assert len(repr(predictor)) < 200


def test_a_plot_has_a_point_and_a_name_a_candidate(answer: Recommendation) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    axes = answer.plot()
    texts = {text.get_text() for text in axes.texts}
    for one in answer.front:
        assert f"{one.rank}: {words.devices_words(one.to_record()['configuration'])}" in texts
    drawn = [point for line, _, _ in axes.containers for point in line.get_xydata().tolist()]
    asked = [[one.training_time_h.value, one.cost_usd.value] for one in answer.front]
    assert sorted(drawn) == sorted(asked)
    assert answer.plot(axes) is axes
    assert "(h)" in axes.get_xlabel()
    assert "USD" in axes.get_ylabel()


def test_nothing_to_plot_is_said(answer: Recommendation) -> None:
    with pytest.raises(UsageError, match="no candidate"):
        replace(answer, front=(), nearest=()).plot()


def test_the_tutorial_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader would run it: every cell, in a kernel of its own, in an empty folder."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = nbformat.read(TUTORIAL, as_version=4)
    client = NotebookClient(book, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    shown = "".join(str(cell.get("outputs", "")) for cell in cells)
    assert "text/html" in shown
    assert "image/png" in shown
    assert "Recommendation" in shown


def test_the_tutorial_is_kept_without_outputs() -> None:
    """What a cell shows depends on the machine and the prices: it is run, not stored."""
    import nbformat

    book = nbformat.read(TUTORIAL, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code)
    assert all(cell.execution_count is None for cell in code)
    nbformat.validate(book)
