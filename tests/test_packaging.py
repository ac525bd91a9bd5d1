"""One product from wheel, sdist, editable install and checkout; nobody's package is hidden."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ["lab", "collectors", "planners", "datasets", "trained_models"]
# What a user sees at once must not wait for these (seconds each).
HEAVY = ["torch", "xgboost", "sklearn", "scipy", "pandas", "joblib", "numpy", "rich", "matplotlib",
         "plotext", "starlette", "uvicorn"]  # fmt: skip


def _python(code: str, *, cwd: Path, python: str = sys.executable, path: str = "") -> str:
    done = subprocess.run(
        [python, "-c", code],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("folder", ["datasets", "trained_models"])
def test_data_folders_hold_no_python(folder: str) -> None:
    assert not list((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", LINKED)
def test_top_level_folder_is_linked_into_the_package(folder: str) -> None:
    assert (ROOT / "advisor" / folder).resolve() == ROOT / folder


def test_facade_defines_nothing_of_its_own() -> None:
    code = (
        "import advisor, predictor\n"
        "assert predictor.__all__ == advisor.__all__\n"
        "assert all(getattr(predictor, n) is getattr(advisor, n) for n in predictor.__all__)"
    )
    _python(code, cwd=ROOT, path=str(ROOT))


@pytest.mark.parametrize("statement", ["import advisor", "import predictor"])
def test_import_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint([m for m in {HEAVY} if m in sys.modules])"
    assert _python(code, cwd=ROOT, path=str(ROOT)) == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom advisor.cli.program import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert _python(code, cwd=ROOT, path=str(ROOT)).splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["simulate", "failures", "--hours", "9", "--devices", "8"],
                                   ["recommend", "--help"], ["runs", "list"]])  # fmt: skip
def test_nothing_that_draws_is_loaded_unasked(words: list[str], tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        f"os.environ['ADVISOR_RUNS'] = {str(tmp_path)!r}\n"
        "from advisor.cli.program import app\n"
        f"try:\n    app({words})\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('matplotlib', 'plotext') if m in sys.modules])"
    )
    assert _python(code, cwd=ROOT, path=str(ROOT)).splitlines()[-1] == "[]"


def test_users_folders_of_the_same_names_do_no_harm(tmp_path: Path) -> None:
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user\\'s own')")
    code = "import advisor.planners, advisor.collectors\nprint(advisor.planners.Layout().dp)"
    assert _python(code, cwd=tmp_path, path=str(ROOT)) == "1"


def test_another_distribution_named_datasets_is_not_shadowed(tmp_path: Path) -> None:
    """A stand-in for Hugging Face's package: a regular package later on the path wins."""
    site = tmp_path / "site"
    (site / "datasets").mkdir(parents=True)
    (site / "datasets" / "__init__.py").write_text("OWNER = 'someone else'")
    code = "import datasets\nprint(datasets.OWNER)"
    assert _python(code, cwd=ROOT, path=f"{ROOT}:{site}") == "someone else"
