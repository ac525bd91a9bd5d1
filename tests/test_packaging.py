"""One product from wheel, sdist, editable install and checkout; nobody's package is hidden."""

import subprocess
import sys
import tomllib
import venv
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


def test_every_package_is_listed() -> None:
    """With mapped folders setuptools finds none by itself."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        str(file.parent.relative_to(ROOT)).replace("/", ".")
        for folder in ("advisor", "lab", "collectors", "planners")
        for file in (ROOT / folder).rglob("__init__.py")
        if "scripts" not in file.parts  # strangers' code, run where it lies
    }
    mapped = {name if name.startswith("advisor") else f"advisor.{name}" for name in found}
    assert mapped | {"advisor.datasets", "advisor.trained_models"} == set(settings["packages"])


@pytest.mark.parametrize("folder", ["datasets", "trained_models"])
def test_every_tracked_data_file_is_in_the_wheel(folder: str) -> None:
    """A clone reads them where they lie; an installed product has only what a pattern names."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = tool["package-data"][f"advisor.{folder}"]
    packed = {p for pattern in patterns for p in (ROOT / folder).glob(pattern)}
    listed = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git checkout: nothing says which files are ours")
    tracked = {ROOT / name for name in listed.stdout.split("\0") if name}
    assert len(tracked) > 30
    assert not sorted(str(p.relative_to(ROOT)) for p in tracked - packed if p.exists())


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


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist built from a clean copy of what git tracks (no stale build folder)."""
    work = tmp_path_factory.mktemp("dist")
    source = work / "source"
    source.mkdir()
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = [n for n in tracked.stdout.split("\0") if n and (ROOT / n).exists()]
    archive = subprocess.run(
        ["tar", "-cf", "-", "--no-recursion", *names], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "-xf", "-"], cwd=source, input=archive.stdout, check=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work), str(source)],
        check=True,
        capture_output=True,
    )
    return work


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_installed_product_works_without_the_checkout(
    distributions: Path, pattern: str, tmp_path: Path
) -> None:
    built = next(distributions.glob(pattern))
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, system_site_packages=False)
    site = next((environment / "lib").glob("python*/site-packages"))
    # The dependencies are those of the running environment; only the product is installed anew.
    import numpy as np

    (site / "dependencies.pth").write_text(str(Path(np.__file__).parents[1]))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--target", str(site), str(built)],
        check=True, capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "import advisor, predictor\nfrom pathlib import Path\n"
        "from advisor.catalogue import Catalogue\n"
        f"assert Path(advisor.__file__).is_relative_to({str(site)!r}), advisor.__file__\n"
        "print(len(Catalogue.load().types.name) > 3000)"
    )
    python = str(environment / "bin" / "python")
    assert _python(code, cwd=tmp_path, python=python) == "True"
