"""The quick start and the README work: every command is run, and prints what the page shows."""

from pathlib import Path

import pytest
from documentation import tool

QUICKSTART = tool("quickstart")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", QUICKSTART.PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_prints_what_it_shows(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    with QUICKSTART.folder() as where:
        for example in QUICKSTART.examples(page):
            result = QUICKSTART.run(example.command, where, QUICKSTART.PAGES[path])
            if result.code == 3 and "not known well enough" in result.output:
                pytest.skip("the machine is too busy to know the time of a step")
            assert result.code == 0, f"{example.command}\n{result.output}"
            assert example.cut(result.output), example.command
            if example.is_exact:
                lacking = QUICKSTART.missing(example, result.output)
                assert not lacking, f"run `python docs/tools/quickstart.py`: {lacking}"


@pytest.mark.slow
def test_the_picture_is_of_what_is_answered_today() -> None:
    picture = tool("picture")
    drawn = picture.named(picture.TARGET.read_text(encoding="utf-8"))
    assert drawn == picture.named(picture.drawn()), "run `python docs/tools/picture.py`"


@pytest.mark.parametrize("path", QUICKSTART.PAGES, ids=lambda path: path.stem)
def test_a_page_has_commands_of_both_kinds(path: Path) -> None:
    found = list(QUICKSTART.examples(path.read_text(encoding="utf-8")))
    assert {example.is_exact for example in found} == {True, False}
    assert all(example.shown for example in found)
    assert any(example.command.startswith("advisor profile ") for example in found)


@pytest.mark.parametrize(
    ("shown", "printed", "is_found"),
    [
        ("step  9.64 ms ±1.36 ms", "step 121 ms ±3.43 ms", True),
        ("1 8 x p5.48xlarge  aws us-east-1", "1 4 x p5.48xlarge aws us-east-1", True),
        ("1 8 x p5.48xlarge  aws us-east-1", "1 8 x p5.48xlarge gcp us-east-1", False),
        ("whole job  46.9 s", "training 46.9 s", False),
    ],
)
def test_only_numbers_may_differ(shown: str, printed: str, is_found: bool) -> None:
    example = QUICKSTART.Example(command="advisor", shown=(shown,), rule="")
    assert (QUICKSTART.missing(example, f"{printed}\n") == []) is is_found
