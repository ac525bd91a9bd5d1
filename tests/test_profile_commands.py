"""What a stranger writes after ``advisor profile``: modules, notebooks, launchers, targets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from collecting import advisor
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive.store import read_recording, remove_run
from advisor.collectors.errors import RecordingError
from advisor.collectors.run.notebooks import cell_script, notebook_script
from advisor.lab.experiments import zoo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SHOWS_ARGUMENTS = "import sys\nprint(sys.argv[1:])\n"


def package(folder: Path, source: str = SHOWS_ARGUMENTS) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "train.py").write_text(source)


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "advisor" / "runs").glob("[!.]*"))


def test_a_module_has_its_own_options(tmp_path: Path) -> None:
    package(tmp_path)
    words = ("--for", "60s", "-m", "pkg.train", "--for", "3", "-m", "x", "--epochs", "2")
    done = advisor(tmp_path, "profile", *words)
    assert done.stdout == "['--for', '3', '-m', 'x', '--epochs', '2']\n", done.stderr
    assert "-train-" in runs(tmp_path)[0].name


def test_m_after_a_script_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWS_ARGUMENTS)
    done = advisor(tmp_path, "profile", "-q", "train.py", "-m", "lr=1,2")
    assert done.stdout == "['-m', 'lr=1,2']\n"


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = advisor(tmp_path, "profile", "-m", "pkg_of_nobody.train")
    assert done.returncode == 1
    assert "pip install pkg_of_nobody" in done.stderr.splitlines()[-1]


def notebook(folder: Path, *cells: str, **kernel: str) -> Path:
    path = folder / "explore.ipynb"
    made = [{"cell_type": "code", "source": one.splitlines(keepends=True)} for one in cells]
    text = {"cell_type": "markdown", "source": ["not ( Python"]}
    content = {"cells": [text, *made], "metadata": {"kernelspec": kernel}, "nbformat": 4}
    path.write_text(json.dumps(content))
    return path


def test_a_notebooks_cells_run_in_order_beside_its_modules(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    notebook(
        tmp_path, "%matplotlib inline\n!pip install nothing\nimport beside, sys",
        "x = beside.VALUE\nx?", "%%bash\nexit 3", "%%time\ndisplay(x, sys.argv[1:])",
    )  # fmt: skip
    done = advisor(tmp_path, "profile", "-q", "explore.ipynb", "--lr", "1")
    assert (done.returncode, done.stdout) == (0, "7 ['--lr', '1']\n"), done.stderr
    (run,) = runs(tmp_path)
    assert "-explore-" in run.name
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix in (".py", ".ipynb")) == [
        "beside.py", "explore.ipynb",
    ]  # fmt: skip
    remove_run(run)
    assert not run.exists()


TRAINS = """import os, sys, torch
print([oct(os.stat(p).st_mode & 0o777) for p in (sys.argv[0], os.path.dirname(sys.argv[0]))])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.zeros(4, 8)).sum().backward()
    optimizer.step()
print(os.getcwd(), os.path.exists(sys.argv[0]))
"""


@pytest.mark.parametrize("ways", [(), ("--rehearse",), ("--workers", "2"), ("--continue",)])
def test_a_notebooks_code_is_private_and_goes_with_the_recording(
    ways: tuple[str, ...], tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    (temporary / "advisor-notebook-999999-left").mkdir(parents=True)
    left = temporary / "advisor-notebook-999999-left" / "old.ipynb.py"
    left.write_text("token = 1")
    os.utime(left.parent, (0, 0))
    notebook(tmp_path, TRAINS, "%env TOKEN=hidden\nraise ValueError(optimizer)  # here")
    words = ("profile", "-q", *ways, "explore.ipynb", "--lr", "1")
    done = advisor(tmp_path, *words, TMPDIR=str(temporary))
    if "--rehearse" not in ways:
        assert done.returncode == 1, done.stderr
        assert "raise ValueError(optimizer)  # here" in done.stderr  # the traceback has its lines
        assert f"{tmp_path} True" in done.stdout
    assert "['0o600', '0o700']" in done.stdout
    assert not list(temporary.glob("advisor-notebook-*"))
    (run,) = runs(tmp_path)
    assert not any(b"TOKEN" in p.read_bytes() for p in run.iterdir())
    assert read_recording(run).command[1:] == ("explore.ipynb", "--lr", "1")


def test_what_is_no_recordings_own_stays_beside_a_notebooks_code(tmp_path: Path) -> None:
    """A script that writes beside itself keeps what it wrote."""
    notebook(tmp_path, "from pathlib import Path\nPath(__file__).with_name('x').touch()")
    advisor(tmp_path, "profile", "-q", "explore.ipynb", TMPDIR=str(tmp_path))
    (folder,) = tmp_path.glob("advisor-notebook-*")
    assert [path.name for path in folder.iterdir()] == ["x"]


@given(
    lines=st.lists(
        st.sampled_from([
            "x = 1", "if x:", "    %time y = 2", "    !ls {x}", "%%bash", "%load_ext a", "y = !ls",
            "model?", "# what?", "z = x % 3", "print('!')", "    pass", "x = %pwd", "?model",
        ]), max_size=8,
    )
)  # fmt: skip
def test_what_python_reads_already_stays_as_it_is(lines: list[str]) -> None:
    """Line for line: and whatever it is, Python's own lines are never changed."""
    script = cell_script("\n".join(lines)).split("\n")
    assert len(script) == max(len(lines), 1)
    is_bash = bool(lines) and lines[0].startswith("%%")
    for old, new in zip(lines, script, strict=False):
        is_python = old in ("x = 1", "if x:", "# what?", "z = x % 3", "print('!')", "    pass")
        assert (new == old) == (is_python and not is_bash)
        assert not new.lstrip().startswith(("%", "!", "?"))
        assert len(new) - len(new.lstrip()) == len(old) - len(old.lstrip()) or is_bash


@pytest.mark.parametrize(
    ("content", "what"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ('{"cells": [{}]}', "cannot be read")],
)
def test_what_is_no_notebook_is_refused(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    with pytest.raises(RecordingError, match=what):
        notebook_script(path)
    with pytest.raises(RecordingError, match="notebook in julia"):
        notebook_script(notebook(tmp_path, language="julia"))


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["torchrun_", "train.py"], "'torchrun_' is not a command", "put a command after --"),
        (["uv", "run", "train.py", "--lr", "1"], "'uv' is not", "advisor profile train.py --lr 1"),
        (["poetry", "run", "python", "-m", "pkg.train"], "'poetry'", "profile -m pkg.train"),
        (["conda", "run", "-n", "x", "python", "train.py"], "'conda'", "profile train.py"),
        (["accelerate", "launch", "train.py"], "'accelerate'", "-m accelerate.commands"),
        (["deepspeed", "train.py"], "'deepspeed'", "activate the environment that has deepspeed"),
        (["pkg.train", "--lr", "1"], "'pkg.train'", "advisor profile -m pkg.train --lr 1"),
        (["fit"], "'fit' is not a command", "advisor profile -- make fit"),
        (["python train.py"], "'python train.py'", "advisor profile python train.py"),
        (["-m"], "-m names no module", "package.train"),
        (["lost.ipynb"], "no script at lost.ipynb", "check the path"),
    ],
)
def test_what_cannot_be_started_names_the_command_that_can(
    tmp_path: Path, words: list[str], what: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path)
    (tmp_path / "Makefile").write_text("LR = 1\nfit: data\n\tpython train.py\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    done = advisor(tmp_path, "profile", *words)
    assert done.returncode == 2, done.stderr
    assert what in done.stderr
    assert hint in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_makefiles_target_is_recorded_through_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # else make says which folder it enters
        monkeypatch.delenv(name, raising=False)
    package(tmp_path, "from advisor import step\nfor _ in range(30):\n    step(samples=2)\n")
    (tmp_path / "Makefile").write_text(f"fit:\n\t@{sys.executable} -m pkg.train\n")
    done = advisor(tmp_path, "profile", "--json", "make", "fit")
    assert json.loads(done.stdout)["total_work"]["steps"] == 30, done.stderr


def test_strangers_scripts_say_what_is_right(tmp_path: Path) -> None:
    """Sixteen at least can run; those that cannot name what their hint must say."""
    scripts = zoo.foreign()
    can_run = [one for one in scripts if one.is_accelerated and not one.says]
    assert len(can_run) >= 16
    assert len([one for one in scripts if one.says]) >= 5
    assert any(one.call[0] == "-m" for one in can_run)
    assert any(one.call[0].endswith(".ipynb") for one in can_run)
    (tmp_path / "a.py").write_text("# foreign: steps=3 speed=4\n")
    with pytest.raises(ValueError, match="speed"):
        zoo.foreign(tmp_path)


HYDRA = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    from advisor import step

    for _ in range(cfg.epochs):
        for _ in range(5):
            step(samples=2)
    if cfg.package:
        __import__(cfg.package)


main()
"""


@pytest.mark.frameworks
def test_a_hydra_application_is_recorded_wherever_hydra_runs_it(tmp_path: Path) -> None:
    """In a folder of its own; and what it lacks is named, though Hydra prints the traceback."""
    pytest.importorskip("hydra", reason="Hydra is not installed")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("epochs: 3\npackage: ''\n")
    (tmp_path / "train.py").write_text(HYDRA)
    done = advisor(tmp_path, "profile", "--json", "train.py", "epochs=7", "hydra.job.chdir=true")
    assert json.loads(done.stdout.splitlines()[-1])["total_work"]["steps"] == 35, done.stderr
    done = advisor(tmp_path, "profile", "train.py", "epochs=0", "package=nobody_there")
    assert done.returncode == 1
    assert "pip install nobody_there" in done.stderr.splitlines()[-1]
