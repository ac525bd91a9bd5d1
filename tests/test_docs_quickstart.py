"""The quick start works as it stands: every command is run, and prints what the page shows."""

import pytest
from documentation import tool

QUICKSTART = tool("quickstart")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_quick_start_prints_what_the_page_shows() -> None:
    page = QUICKSTART.PAGE.read_text(encoding="utf-8")
    with QUICKSTART.folder() as where:
        for example in QUICKSTART.examples(page):
            result = QUICKSTART.run(example.command, where)
            if result.code == 3 and "not known well enough" in result.output:
                pytest.skip("the machine is too busy to know the time of a step")
            assert result.code == 0, f"{example.command}\n{result.output}"
            assert example.cut(result.output), example.command
            if example.is_exact:
                lacking = QUICKSTART.missing(example, result.output)
                assert not lacking, f"run `python docs/tools/quickstart.py`: {lacking}"


def test_the_page_has_commands_of_both_kinds() -> None:
    found = list(QUICKSTART.examples(QUICKSTART.PAGE.read_text(encoding="utf-8")))
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
