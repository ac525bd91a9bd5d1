"""What pages show is what is answered today; ``test_installed.py`` runs every command of them."""

import json
import re

import pytest
from documentation import ROOT, tool

QUICKSTART = tool("quickstart")
FIGURES = tool("figures")
README = ROOT / "README.md"


def test_the_answers_of_the_readme_are_shown_letter_for_letter() -> None:
    found = list(QUICKSTART.examples(README.read_text(encoding="utf-8")))
    assert [("--run" in example.command, example.is_literal) for example in found] == [
        (True, True), (True, True), (False, True)
    ]  # fmt: skip
    (found,) = QUICKSTART.examples((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    assert found.is_literal


def test_the_readme_is_short_and_as_wrong_as_is_stored() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 1000
    marked = re.findall(r"\(`([a-z-]+)`\) \| <!--=\1\.median-->.*<!--=\1\.p90-->", text)
    assert len(marked) == 8
    assert marked[0] == "recorded"


def test_figures_in_prose_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert FIGURES.main() == 0, "run `python docs/tools/figures.py`"


def test_a_mark_is_written_from_the_stored_record() -> None:
    stored = json.loads((ROOT / "datasets" / "accuracy" / "campaigns.json").read_text())["record"]
    now = FIGURES.rewritten("errs by <!--=campaigns.median-->99.9<!--=--> %")
    assert f"->{100 * stored['overall']['median_ape_fraction']:.1f}<" in now
    with pytest.raises(SystemExit, match="no figure"):
        FIGURES.rewritten("<!--=campaigns.groups/none/mean-->1<!--=-->")


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("`advisor validate campaigns` errs by 14.9 % in the mean", True),
        ("| runs (`campaigns`) | 14.9 % |", True),
        ("`campaigns` errs by <!--=campaigns.mean-->14.9<!--=--> % in the mean", False),
        ("`campaigns`: 14.9 % <!-- not printed: the paper's table 2 -->", False),
        ("`campaigns` gives 90 % intervals", False),
        ("`campaigns`\n\nAnother paragraph has 14.9 %", False),
    ],
)
def test_a_figure_typed_beside_its_protocol_is_refused(text: str, is_refused: bool) -> None:
    assert bool(list(FIGURES.hand_typed(text))) is is_refused


def test_the_picture_is_of_what_is_answered_today() -> None:
    picture = tool("picture")
    drawn = picture.named(picture.TARGET.read_text(encoding="utf-8"))
    assert drawn == picture.named(picture.drawn()), "run `python docs/tools/picture.py`"


def test_the_quick_start_has_commands_of_both_kinds() -> None:
    page = ROOT / "docs" / "quickstart.md"
    found = list(QUICKSTART.examples(page.read_text(encoding="utf-8")))
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
