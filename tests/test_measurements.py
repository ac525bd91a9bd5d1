"""The tables that ship: made of the published form by one function, and read alike in both."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.errors import ModelError
from advisor.lab import data as measurements
from advisor.lab import score
from advisor.lab.data import fetch as build
from advisor.lab.data.dataset import PublishedTable, roots, standing_for, write_frame
from advisor.lab.score.harness import Validation
from advisor.records import reads

ROOT = Path(__file__).parents[1]
SHIPPED = [one for one in measurements.ALL if one.ships]
PACKAGED = data.root("datasets")
SHARED = data.shared()
needs_shared = pytest.mark.skipif(SHARED is None, reason="the mirror of measurements is not here")


def published() -> Path:
    assert SHARED is not None
    return SHARED / "data"


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rebuilt")
    build.build(published(), out)
    return out


def unpacked(path: Path) -> bytes:
    """Content without its compression, whose bytes depend on the library's version."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@needs_shared
def test_rebuilding_gives_what_ships(rebuilt: Path) -> None:
    files = sorted(p.relative_to(rebuilt) for p in rebuilt.rglob("*") if p.is_file())
    assert len(files) > 20
    for file in files:
        assert unpacked(PACKAGED / file) == unpacked(rebuilt / file), file


@needs_shared
@pytest.mark.parametrize("dataset", SHIPPED, ids=lambda one: one.name)
def test_both_forms_read_alike(dataset: measurements.Dataset) -> None:
    for name, table in dataset.tables.items():
        if not table.columns:
            continue
        there = table.selection(dataset.read(name, published())).reset_index(drop=True)
        here = dataset.read(name, PACKAGED)
        pd.testing.assert_frame_equal(here, there, check_dtype=False, check_exact=True)
    for name in dataset.runs:
        assert dataset.read_runs(name, PACKAGED) == dataset.read_runs(name, published())


def outcome(result: Validation) -> dict[str, object]:
    return result.to_record()


@needs_shared
@pytest.mark.parametrize("protocol", ["gpu-mlperf", "failures", "ranking", "queue"])
def test_scores_are_equal_from_both_forms(protocol: str) -> None:
    """Protocols of whose tables nothing is left out for its licence."""
    here, there = (score.run(protocol, place) for place in (PACKAGED, published()))
    assert outcome(here) == outcome(there)


def test_the_protocols_that_need_no_fetched_data_have_theirs() -> None:
    """At least 5,000 rows that a protocol scores ship; no more than 2.7 MB of them."""
    assert all(one.is_in(PACKAGED) for one in SHIPPED)
    rows = sum(
        len(one.read(name, PACKAGED))
        for one in SHIPPED
        for name, table in one.tables.items()
        if table.columns and one.name in ("layouts", "layers", "mlperf", "pollux", "tiresias")
    )
    assert rows > 5000
    size = sum(p.stat().st_size for p in (PACKAGED / "measurements").rglob("*") if p.is_file())
    assert size < 2.7e6


@pytest.mark.parametrize("dataset", SHIPPED, ids=lambda one: one.name)
def test_every_table_says_where_it_is_from_and_what_its_columns_are(
    dataset: measurements.Dataset,
) -> None:
    text = (PACKAGED / "measurements" / dataset.name / "README.md").read_text()
    assert "**Licence**" in text
    for one in dataset.upstream:
        assert one.repository in text
        assert one.commit in text
    for name, table in dataset.tables.items():
        assert Path(table.file).name in text
        missing = [c for c in dataset.read(name, PACKAGED) if f"`{c}`" not in text]
        assert not missing or dataset.name == "campaigns"


def test_the_overview_names_every_data_set_and_its_licence() -> None:
    text = (PACKAGED / "measurements" / "README.md").read_text()
    for one in measurements.ALL:
        assert f"`{one.name}`" in text, one.name
    assert set(measurements.BY_NAME) == {one.name for one in measurements.ALL}


@pytest.mark.parametrize("room", ["validation", "train"])
def test_nobody_else_opens_a_published_table(room: str) -> None:
    for file in (ROOT / "advisor" / room).glob("*.py"):
        text = file.read_text()
        found = re.findall(r"read_csv|read_parquet|\"(?:measurements|planners|cloud_runs)/", text)
        assert not found, f"{file}: {found}"


def test_rows_without_a_licence_do_not_ship() -> None:
    rows = measurements.LAYOUTS.read("runs", PACKAGED)
    assert "sailor_validation" not in set(rows["table"])
    assert rows["licence"].notna().all()
    assert not rows["licence"].str.contains("no LICENSE").any()
    assert set(measurements.POLLUX.read("placements", PACKAGED)["cluster"]) == {"aws"}


def test_a_named_folder_is_looked_through_alone(tmp_path: Path) -> None:
    assert roots(tmp_path) == (tmp_path,)
    assert roots(PACKAGED)[:2] == (PACKAGED, data.user_data())
    with pytest.raises(ModelError, match=f"not under {tmp_path}"):
        measurements.MLPERF.read("entries", tmp_path)


def test_what_does_not_ship_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_SHARED", "/nonexistent")
    with pytest.raises(ModelError, match="is not here") as raised:
        score.run("gpu", PACKAGED)
    assert raised.value.hint == "advisor data fetch lambda --from COPY"


def test_what_was_fetched_comes_before_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    table = measurements.LAMBDA.tables["throughputs"]
    own = pd.DataFrame([dict.fromkeys(table.ours, "x") | {"units_per_s": 7.0}])
    write_frame(own, tmp_path / "advisor" / "measurements" / table.file)
    assert measurements.LAMBDA.read("throughputs", PACKAGED)["units_per_s"].tolist() == [7.0]


def test_what_is_read_is_noted() -> None:
    with reads.tables_read() as inputs:
        measurements.NEUSIGHT.read("latencies", PACKAGED)
        measurements.SCOUT.read_runs("jobs", PACKAGED)
    assert list(inputs) == ["neusight/latencies", "scout/jobs"]


TABLE = PublishedTable(
    file="a/a.csv",
    published="there/a.csv",
    columns={"name": "label", "step_s": "ms"},
    divisors={"step_s": 1e3},
    optional=frozenset({"label"}),
)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
                lambda text: text.strip() == text
            ),
            st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_our_form_survives_writing_and_is_kept_as_it_is(rows: list[tuple[str, float]]) -> None:
    import tempfile

    frame = pd.DataFrame(rows, columns=["label", "ms"]).assign(more=1)
    ours = TABLE.normalise(frame, Path("t.csv"))
    assert list(ours) == ["name", "step_s"]
    np.testing.assert_array_equal(ours["step_s"], frame["ms"] / 1e3)
    pd.testing.assert_frame_equal(TABLE.normalise(ours, Path("t.csv")), ours)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv.gz"
        write_frame(ours, path)
        first = path.read_bytes()
        write_frame(ours, path)
        assert path.read_bytes() == first
        again = TABLE.read_file(path)
    np.testing.assert_array_equal(again["step_s"], ours["step_s"])


def test_a_file_stands_for_a_published_table_inside_a_block(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("ms\n5\n")
    with standing_for(TABLE.published, path):
        assert TABLE.path_under(tmp_path) == path
        found = TABLE.read_under(tmp_path)
    assert found is not None
    assert found["step_s"].tolist() == [0.005]
    assert TABLE.path_under(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("label\nx\n", "lacks the column ms"),
        ("label,ms\nx,soon\n", "soon"),
        ("", "cannot read"),
        (None, "cannot read"),
    ],
)
def test_a_broken_table_is_one_error(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "t.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ModelError, match=says) as raised:
        TABLE.read_file(path)
    assert raised.value.hint


def test_an_optional_column_is_empty_where_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("ms\n5\n")
    found = TABLE.read_file(path)
    assert found["name"].isna().all()
    assert found["step_s"].tolist() == [0.005]
