"""Tables that users write, ``--overrides`` and ``--runs``: read, or refused in two lines."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.catalogue.overrides import read_rules
from advisor.cli import program
from advisor.errors import AdvisorError
from advisor.jobs.runs import read_runs

RULES = "rule,provider,instance_type,region,pricing,value\n"
RULE = "price,aws,g5.xlarge,us-east-1,on-demand,0.5\n"
RUNS = "machine,step,batch\n"
ROW = "g5.xlarge,310ms,32\n"
MANY = "9" * 25
NASTY = st.sampled_from(
    ["", " ", "nan", "inf", "-inf", "-1", "0", "1e400", MANY, "9" * 5000, "0x10", "1_0", "\u0663",
     "\x00", '"', ";", "\ufeff", "g5.xlarge", "310ms", "aws", "price", "machine", "-5ms", "1e30s"]
)  # fmt: skip


def told(*words: str) -> tuple[int, list[str]]:
    """Return exit code and the lines of the complaint; what is no complaint ends the test."""
    out, complaint, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["advisor", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(complaint),
    ):
        try:
            program.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return code, complaint.getvalue().splitlines()


def with_rules(file: Path) -> tuple[int, list[str]]:
    return told("predict", "--layers", "2", "--hidden", "64", "--heads", "2", "--total-steps",
                "10", "--on", "aws:g5.xlarge", "--overrides", str(file))  # fmt: skip


def with_runs(file: Path) -> tuple[int, list[str]]:
    return told("predict", "--runs", str(file), "--total-steps", "1000", "--on", "g5.xlarge")


@pytest.mark.parametrize(
    "content",
    [RULES, RULES.strip(), RULES + RULE, "\ufeff" + RULES + RULE,
     (RULES + RULE).replace("\n", "\r\n"), RULES + RULE + "\n\n"],
    ids=["header only", "no end of line", "plain", "byte order mark", "CRLF", "blank end"],
)  # fmt: skip
def test_rules_are_read_as_spreadsheets_write_them(tmp_path: Path, content: str) -> None:
    file = tmp_path / "overrides.csv"
    file.write_bytes(content.encode())
    code, complaint = with_rules(file)
    assert code == 0, complaint


@pytest.mark.parametrize(
    "content", [RUNS + ROW, "\ufeff" + RUNS + ROW, (RUNS + ROW).replace("\n", "\r\n")],
    ids=["plain", "byte order mark", "CRLF"],
)  # fmt: skip
def test_runs_are_read_as_spreadsheets_write_them(tmp_path: Path, content: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_bytes(content.encode())
    code, complaint = with_runs(file)
    assert code == 0, complaint


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("", "is empty", "header"),
        (RULES.replace("rule,", "") + RULE.replace("price,", ""), "'rule': is missing",
         "price, factor, service"),
        (RULES + RULE.replace("price", ""), "'rule': is empty", "price, factor, service"),
        (RULES + RULE.replace("price", "prise"), "'rule': is 'prise'", "price, factor, service"),
        ((RULES + RULE).replace(",", ";"), "is missing", "commas"),
        (RULES + RULE.replace("0.5", MANY), MANY, "correct"),
        (RULES + RULE.replace("0.5", "nan"), "'nan'", "correct"),
        (RULES + "price,aws\n", "has 2 cells", "correct"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_read_says_what_and_what_to_do(
    tmp_path: Path, content: str, what: str, hint: str
) -> None:
    file = tmp_path / "overrides.csv"
    file.write_text(content)
    code, complaint = with_rules(file)
    assert code in (1, 2)
    assert what in complaint[0]
    assert complaint[0].startswith("error: ")
    assert complaint[1].startswith("hint: ")
    assert hint in complaint[1]
    assert len(complaint) == 2


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (RUNS, "has no run", "machine,step,batch"),
        (RUNS + f"g5.xlarge,310ms,{MANY}\n", "the batch is out of range", "1 to"),
        (RUNS + "g5.xlarge,310ms,nan\n", "batch: cannot read 'nan'", "plain number"),
        (RUNS + "g5.xlarge,310ms,32.5\n", "not a whole number", "32"),
        (RUNS + f"g5.xlarge,{MANY}s,32\n", "step time is out of range", "310ms"),
        (RUNS + "g5.xlarge,0.31,32\n", "step: cannot read '0.31'", "0.31s"),
        (f"machine,step,count\ng5.xlarge,310ms,{MANY}\n", "machines is out of range", "1 to"),
        ("step,batch\n310ms,32\n", "no column 'machine'", "machine,step,batch"),
    ],
)
def test_a_run_that_cannot_be_read_says_what_and_what_to_do(
    tmp_path: Path, content: str, what: str, hint: str
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(content)
    code, complaint = with_runs(file)
    assert code == 2
    assert what in complaint[0]
    assert hint in complaint[1]
    assert len(complaint) == 2


@given(st.lists(NASTY, min_size=1, max_size=7), st.sampled_from([RULES, "rule,provider\n", ""]))
def test_no_cell_of_a_rule_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], header: str
) -> None:
    file = tmp_path_factory.mktemp("rules") / "overrides.csv"
    file.write_text(header + ",".join(cells) + "\n", encoding="utf-8")
    with contextlib.suppress(AdvisorError):
        read_rules(file)


@given(
    st.lists(NASTY, min_size=1, max_size=5), st.sampled_from([RUNS, "machine,step,count\n", ""])
)
def test_no_cell_of_a_run_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], header: str
) -> None:
    file = tmp_path_factory.mktemp("runs") / "runs.csv"
    file.write_text(header + ",".join(cells) + "\n", encoding="utf-8")
    with contextlib.suppress(AdvisorError):
        for run in read_runs(file):
            assert run.batch is None or run.batch <= 10**12


def test_an_import_without_a_format_or_a_column_says_how(tmp_path: Path) -> None:
    file = tmp_path / "team.csv"
    file.write_text("machine,hours\ng5.xlarge,2\n")
    code, complaint = told("runs", "import", "csv")
    assert code == 2
    assert "advisor runs import csv PATH" in complaint[1]
    code, complaint = told("runs", "import", str(file))
    assert code == 1
    assert "no column 'time_s'; found machine, hours" in complaint[0]
    assert "time_s" in complaint[1]
