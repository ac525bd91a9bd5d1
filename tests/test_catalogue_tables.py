"""Tables are read strictly: what is wrong is named by file, row and column."""

from __future__ import annotations

import contextlib
import gzip
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.ask import Constraints
from advisor.catalogue import Catalogue, shipped
from advisor.catalogue import snapshot as store
from advisor.catalogue.offer_columns import Floats
from advisor.catalogue.tables import MAX_ROWS, Column, cell, parse, parse_numbers, read
from advisor.errors import CatalogueError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.rank.ranking import recommend

PRICE = Column(name="price", low=1e-5, high=1e5)
COLUMNS = (Column(name="name", kind="text", is_required=True), PRICE)
NUMBERS = (Column(name="id", is_required=True), PRICE)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("name,price\nm5,-1\n", r"t\.csv, row 2, column 'price': is '-1'"),
        ("name,price\nm5,0.1\nm6,0\n", r"row 3, column 'price': is '0'"),
        ("name,price\nm5,nan\n", r"row 2, column 'price': is 'nan'"),
        ("name,price\nm5,inf\n", r"row 2, column 'price': is 'inf'"),
        ("name,price\nm5,1e9\n", r"row 2, column 'price': is '1e9'"),
        ("name,price\nm5,abc\n", r"row 2, column 'price': is 'abc'"),
        ("name,price\n,1\n", r"row 2, column 'name': is empty"),
        ("name\nm5\n", r"row 1, column 'price': is missing"),
        ("name,price,price\nm5,1,2\n", r"row 1, column 'price': appears twice"),
        ("name,price\nm5\n", r"row 2: has 1 cells, the header 2"),
        ('name,price\n"m5,1\n', r"t\.csv is not CSV"),
        ("", r"t\.csv is empty"),
    ],
)
def test_a_fault_is_named_by_file_row_and_column(content: str, place: str) -> None:
    with pytest.raises(CatalogueError, match=place) as raised:
        parse(content, COLUMNS, "t.csv")
    assert raised.value.hint


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("id,price\n1,-1\n", "row 2, column 'price'"),
        ("id,price\n1,1\n2,1\n,1\n", "row 4, column 'id': is empty"),
        ("id,price\n1,1\n2,x\n", "row 3, column 'price'"),
        ("id,price\n1,1,1\n2\n", "row 2: has 3 cells"),  # the cells' number is right, not theirs
        ("id,price\n1,inf\n", "row 2, column 'price'"),
    ],
)
def test_the_fast_reader_finds_the_same_faults(content: str, place: str) -> None:
    with pytest.raises(CatalogueError, match=place):
        parse_numbers(content, NUMBERS, "t.csv")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.one_of(st.none(), st.floats(1e-5, 1e5, allow_nan=False))
        ),
        min_size=1,
        max_size=30,
    )
)
def test_the_fast_reader_reads_what_the_slow_one_reads(
    rows: list[tuple[int, float | None]],
) -> None:
    content = "id,price\n" + "".join(f"{cell(a)},{cell(b)}\n" for a, b in rows)
    fast = parse_numbers(content, NUMBERS, "t.csv")
    slow = parse(content, NUMBERS, "t.csv")
    for name in ("id", "price"):
        np.testing.assert_array_equal(fast[name], slow[name])
    expected: Floats = np.array([math.nan if b is None else b for _, b in rows])
    np.testing.assert_array_equal(fast["price"], expected)


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_one_clear_error(content: str) -> None:
    for reader in (parse, parse_numbers):
        with contextlib.suppress(CatalogueError):
            assert set(reader(content, NUMBERS, "t.csv")) <= {"id", "price"}


def test_ten_million_rows_are_refused_before_they_are_read() -> None:
    content = "id,price\n" + "1,1\n" * 10_000_000
    for reader in (parse, parse_numbers):
        with pytest.raises(CatalogueError, match=f"more than {MAX_ROWS:,} rows"):
            reader(content, NUMBERS, "t.csv")


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(CatalogueError, match="more than 256 MiB"):
        read(path, COLUMNS)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00garbage", b"", b"\x1f\x8b"])
def test_a_damaged_gzip_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    with pytest.raises(CatalogueError, match=r"t\.csv\.gz"):
        read(path, COLUMNS)


def test_quotes_commas_and_line_ends_inside_cells_are_kept() -> None:
    table = parse('name,price\r\n"a, ""b""\nc",1\r\n', COLUMNS, "t.csv")
    assert table["name"] == ['a, "b"\nc']


@pytest.mark.parametrize(
    "name", ["types.csv.gz", "prices.csv.gz", "regions.csv", "provenance.csv"]
)
def test_a_snapshot_without_a_file_says_which(tmp_path: Path, name: str) -> None:
    for path in store.bundled_folder().iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "types.skypilot-catalog.csv.gz").unlink()
    (tmp_path / "prices.skypilot-catalog.csv.gz").unlink()
    with pytest.raises(CatalogueError, match=name.split(".")[0]):
        Catalogue.load(tmp_path, with_overrides=False)


@pytest.mark.parametrize("day", ["2026-13-01", "yesterday", "20260101", "=1+1"])
def test_a_source_with_a_day_that_is_none_is_refused(tmp_path: Path, day: str) -> None:
    for path in store.bundled_folder().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "provenance.csv").read_text()
    (tmp_path / "provenance.csv").write_text(text.replace("2024-12-23", day))
    with pytest.raises(CatalogueError, match=r"provenance\.csv, row \d+, column 'as_of'"):
        Catalogue.load(tmp_path, with_overrides=False)


def test_tables_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for path in store.bundled_folder().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "regions.csv").write_text("region\nus-east-1\n")
    with pytest.raises(CatalogueError, match=r"'region_id': .* refers to, which has 1"):
        Catalogue.load(tmp_path, with_overrides=False)


def test_the_rest_works_without_the_files_of_another_licence(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    for path in store.bundled_folder().iterdir():
        if "cc-by-sa" not in path.name and "skypilot" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    from advisor.catalogue.snapshot import read_snapshot

    snapshot = read_snapshot(tmp_path, tmp_path, Catalogue)
    assert len(snapshot.types) > 3_000
    assert np.isnan(snapshot.types.intra_node_bytes_per_s).all()
    assert set(snapshot.types.provider.tolist()) == {"aws", "azure", "gcp"}
    # Types whose cores only that file counts are not ranked; the rest is.
    predictor = Predictor(catalogue=snapshot)
    unknown = np.isnan(snapshot.types.vcpus) & (snapshot.types.accelerator == "")
    assert unknown.any()
    assert (predictor.fleet.device[unknown] == -1).all()
    assert recommend(make_job(), Constraints(max_nodes=1), predictor=predictor).front


def test_a_parsed_copy_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = Catalogue.load(store.bundled_folder(), with_overrides=False)
    copies = list((tmp_path / "advisor" / "catalogue" / "parsed").glob("*.npy"))
    assert copies
    second = Catalogue.load(store.bundled_folder(), with_overrides=False)
    np.testing.assert_array_equal(
        first.prices.on_demand_usd_per_h, second.prices.on_demand_usd_per_h
    )
    for copy in copies:
        copy.write_bytes(b"nonsense")
    third = Catalogue.load(store.bundled_folder(), with_overrides=False)
    np.testing.assert_array_equal(first.prices.spot_usd_per_h, third.prices.spot_usd_per_h)


def test_nothing_needs_a_cache_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert len(Catalogue.load(with_overrides=False).types) > 3_900


def test_an_old_copy_of_a_whole_snapshot_is_read_with_the_cards_that_ship(tmp_path: Path) -> None:
    """Accelerators were five tables once; what is missing in such a copy is not guessed."""
    old = shutil.copytree(store.bundled_folder(), tmp_path / "old")
    (old / "accelerators.csv").write_text("name,vendor,memory_gb\nH100-SXM5-80GB,NVIDIA,1\n")
    (old / "aliases.csv").write_text("alias,name,kind\nH100,H100-SXM5-80GB,alias\n")
    cards = Catalogue.load(old, with_overrides=False).accelerators
    assert cards
    assert all(card == shipped()[name] for name, card in cards.items())
