"""What people install, run from an empty folder: nothing of the checkout is there to help."""

from __future__ import annotations

import filecmp
import functools
import gzip
import http.cookiejar
import itertools
import json
import os
import shutil
import signal
import subprocess
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from documentation import ROOT, tool

RELEASE = tool("release", ".ci")
QUICKSTART = tool("quickstart")
LINKED = ("collectors", "datasets", "lab", "planners", "trained_models")
# Left out of the package: what is read, or run by the laboratory's programs, in a checkout.
LEFT_OUT = ("advisor/lab/notes/", "advisor/lab/README.md", "advisor/planners/README.md",
            "advisor/lab/speed/equivalent_mutants.txt",
            "advisor/lab/speed/mutants_judged.jsonl")  # fmt: skip
TRANSFORMER = ("--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "2B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A bare environment with the product in it, and a user's empty folder and home."""

    place: Path
    here: Path
    home: Path

    @property
    def site(self) -> Path:
        return next(self.place.glob("lib/python*/site-packages"))

    def environment(self, columns: int = 100) -> dict[str, str]:
        """Return what a user's shell has; as all tests do, it computes on one thread."""
        path = f"{self.place / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.home), "PATH": path, "COLUMNS": str(columns),
                "OMP_NUM_THREADS": "1"}  # fmt: skip

    def run(self, line: str, *, codes: tuple[int, ...] = (0,), columns: int = 100) -> str:
        """Return what a line in a shell prints, both streams."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.here, env=self.environment(columns), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=250,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, f"{line}\n{done.stdout}"
        assert done.returncode in codes, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout


def tracked() -> list[str]:
    """Return the files that git has or would take."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git checkout: nothing says which files are ours")
    return sorted(
        {name for name in done.stdout.split("\0") if os.path.lexists(ROOT / name)} - {""}
    )


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the checkout, but for what an earlier build left: a module that is gone."""
    copied = tmp_path_factory.mktemp("source")
    names = "\0".join(tracked()).encode()
    packed = subprocess.run(
        ["tar", "-cf", "-", "--null", "-T", "-"], cwd=ROOT, input=names, capture_output=True,
        check=True,
    )  # fmt: skip
    subprocess.run(["tar", "-xf", "-"], cwd=copied, input=packed.stdout, check=True)
    for left in ("lib", "bdist.linux-x86_64/wheel"):
        (copied / "build" / left / "advisor").mkdir(parents=True)
        (copied / "build" / left / "advisor" / "gone.py").write_text("")
    return copied


@pytest.fixture(scope="session")
def distributions(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What can be given to pip: the sdist, the wheel, and the tree that both are built from."""
    sdist, wheel = RELEASE.built(source, tmp_path_factory.mktemp("dist"))
    return {"sdist": sdist, "wheel": wheel, "tree": source}


@pytest.fixture(scope="session")
def install(
    distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Installed]:
    """What installs one of the three once, and gives it a new folder and home at every call."""

    @functools.cache
    def place(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("installed") / "env"
        RELEASE.borrowing(folder, distributions[kind])
        return folder

    def installed(kind: str) -> Installed:
        folder = tmp_path_factory.mktemp("user")
        ours = Installed(place=place(kind), here=folder / "here", home=folder / "home")
        ours.here.mkdir()
        ours.home.mkdir()
        return ours

    return installed


@pytest.fixture(scope="session", params=["sdist", "wheel", "tree"])
def each(request: pytest.FixtureRequest, install: Callable[[str], Installed]) -> Installed:
    """One of the three, installed."""
    return install(request.param)


@pytest.fixture(scope="session")
def installed(install: Callable[[str], Installed]) -> Installed:
    """The wheel, installed; in the folder are recordings, one of them a script's of its user."""
    ours = install("wheel")
    for name in ("run-schema-1", "run-rehearsed"):
        shutil.copytree(ROOT / "tests" / "golden" / name, ours.here / "tests" / "golden" / name)
    (kept,) = (ROOT / "tests" / "golden" / "systems").glob("*-digits_cnn-*")
    shutil.copytree(kept, ours.home / ".local/share/advisor/runs" / kept.name)
    return ours


def test_what_is_installed_is_every_tracked_file_of_the_product(
    each: Installed, source: Path
) -> None:
    """Byte for byte, so that what one of the three answers the others answer.

    Whatever the kind of file, and whether its folder has an ``__init__.py``: none is listed.
    """
    names = [
        n for n in tracked() if n == "predictor.py" or n.split("/")[0] in (*LINKED, "advisor")
    ]
    ours = {n if n.startswith(("advisor/", "predictor")) else f"advisor/{n}": n for n in names}
    for link in LINKED:  # links in the checkout, folders here
        ours.pop(f"advisor/{link}", None)
    assert all(any(name.startswith(one) for name in ours) for one in LEFT_OUT)
    there = {
        str(path.relative_to(each.site))
        for path in itertools.chain(each.site.glob("predictor.py"), each.site.glob("advisor/**/*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    assert sorted(there) == sorted(name for name in ours if not name.startswith(LEFT_OUT))
    other = [n for n in there if not filecmp.cmp(each.site / n, source / ours[n], shallow=False)]
    assert other == []


def test_the_wheel_has_its_metadata_and_no_file_twice(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        stated = wheel.read(metadata).decode().partition("\n\n")[0]
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "advisor", "predictor.py",
    }  # fmt: skip
    for field in ("Author", "Classifier", "Keywords", "License-Expression", "Requires-Python"):
        assert f"\n{field}: " in stated


@pytest.mark.parametrize(
    "line",
    [
        f"advisor recommend {' '.join(TRANSFORMER)}",
        f"advisor plan {' '.join(TRANSFORMER)} --cluster 8xA100-80GB:nvlink",
        f"advisor predict {' '.join(TRANSFORMER)} --on aws:p4d.24xlarge",
        "advisor predict --model llama-3.1-8b --on aws:p5.48xlarge",
        f"python -m advisor plan {' '.join(TRANSFORMER)} --cluster 2x8xH100-80GB:nvlink",
        "python -c 'import predictor; predictor.Predictor()'",
        "python -c 'from advisor import Predictor; Predictor()'",
    ],
)
def test_a_described_job_is_answered(installed: Installed, line: str) -> None:
    installed.run(line)


def test_each_distribution_is_itself_and_of_the_version_that_is_stated(each: Installed) -> None:
    where = each.run("python -c 'import advisor, predictor; print(advisor.__file__)'").strip()
    assert Path(where).is_relative_to(each.site)
    version = RELEASE.version_of((ROOT / "pyproject.toml").read_text())
    assert each.run("advisor --version").strip() == version
    assert each.run("python -m advisor --version").strip() == version
    assert "Usage: python -m advisor " in each.run("python -m advisor --help")


def test_its_page_and_a_question_are_served(installed: Installed) -> None:
    words = [str(installed.place / "bin" / "advisor"), "ui", "--no-open", *TRANSFORMER]
    with subprocess.Popen(
        words, cwd=installed.here, env=installed.environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        address = running.stdout.readline().strip()
        assert address.startswith("http"), running.communicate()
        with _browser(address) as (ask, page):
            assert "<title>transformer: what to rent</title>" in page
            answer = ask({"question": {"gpus": "H100", "max_nodes": 1}, "whole": False})
        running.send_signal(signal.SIGINT)
        rest, said = running.communicate()
    assert answer["data"]["answer"]["front"]
    assert (running.returncode, rest, said) == (0, "", "")


@contextmanager
def _browser(address: str) -> Iterator[tuple[Callable[[Any], Any], str]]:
    """Open the printed address; yield what posts a question as the page does, and the page."""
    jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar)
    parts = urlsplit(address)
    origin = f"{parts.scheme}://{parts.netloc}"

    def ask(body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Origin": origin}
        request = urllib.request.Request(
            f"{origin}{parts.path}api/answer", json.dumps(body).encode(), headers
        )
        with browser.open(request) as reply:
            return json.load(reply)

    with browser.open(address) as reply:
        yield ask, reply.read().decode()


@pytest.mark.parametrize("page", QUICKSTART.PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_prints_what_it_shows(
    installed: Installed, page: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with QUICKSTART.folder() as here:
        reader = Installed(place=installed.place, here=Path(here), home=home)
        for example in QUICKSTART.examples(page.read_text(encoding="utf-8")):
            # A step that a busy machine hides is refused, with a code of its own.
            codes = (0,) if example.is_exact else (0, 3)
            printed = reader.run(example.command, codes=codes, columns=QUICKSTART.PAGES[page])
            if example.is_literal:
                assert tuple(example.cut(printed)) == example.shown, "quickstart.py"
            elif example.is_exact:
                lacking = QUICKSTART.missing(example, printed)
                assert not lacking, f"run `python docs/tools/quickstart.py`: {lacking}"
            else:
                assert example.cut(printed) or "too noisy" in printed, example.command


RUN = "tests/golden/run-schema-1"


@pytest.mark.parametrize(
    "line",
    [
        "advisor recommend",
        "advisor recommend --json",
        "advisor predict --on g5.xlarge",
        "advisor plan --cluster 8xA100-80GB:nvlink",
        "advisor advise",
        "advisor report -o page.html",
        "advisor export --to skypilot -o task.yaml",
        "advisor export --to slurm -o job.sh",
        "advisor gate --on aws:g5.xlarge --budget 50",
        "advisor gate --on aws:g5.xlarge --budget 0.0001 || test $? = 3",
        "advisor runs list",
        "advisor runs show digits",
        "advisor catalogue list --gpus A100:8",
        "advisor doctor",
        "advisor data list",
        "advisor validate failures",
        "advisor evaluate --help",
        "advisor collect --help",
        "advisor simulate spot --hours 10 --deadline 20h",
        "advisor simulate queue --trace jobs.csv --nodes 2 --devices-per-node 4 --devices 4"
        " --hours 1 --insertions 5",
        "advisor simulate availability --workers 4 --hours 3h",
        "advisor simulate elastic --samples 1e6 --phases 3 --batch 64 --sample-time 4ms --price 1"
        " --noise 500:20000",
        "advisor simulate failures --hours 1000 --devices 16384 --checkpoint 30s",
        "advisor simulate peers --peer 4x35@us --peer 4x35@eu --link us,eu=210Mbps"
        " --target-batch 32768 --parameters 198M --samples 1M",
        f"advisor simulate aggregation {RUN} {RUN} --link 10Gbit/s --core-rate 100GB/s",
        f"advisor simulate limits {RUN} {RUN} --pool 4x8GB",
        # Six runs teach it nothing: refused with a table, as one that errs more than what ships.
        "advisor train --data six.jsonl --model ridge --out own --quiet || test $? = 1",
        "advisor runs actual digits g4dn.xlarge --step-time 3ms",
        "advisor train --undo || test $? = 2",  # nothing was learned
    ],
)
def test_a_newcomer_s_line_works(installed: Installed, line: str) -> None:
    jobs = (ROOT / "tests/golden/tiresias/60_job_n2g4.csv").read_text().splitlines()[1:]
    rows = ["job_id,num_gpu,submit_time,duration", *(",".join(j.split(",")[:4]) for j in jobs)]
    (installed.here / "jobs.csv").write_text("\n".join(rows) + "\n")
    (installed.here / "six.jsonl").write_text("".join(_six_runs()))
    installed.run(line)


def test_every_verb_of_simulate_is_among_them() -> None:
    from advisor.cli.program import load_verb

    (lines,) = (
        mark.args[1]
        for mark in test_a_newcomer_s_line_works.pytestmark  # type: ignore[attr-defined]
    )
    assert {line.split()[2] for line in lines if line.startswith("advisor simulate ")} == set(
        load_verb("simulate").commands
    )


def _six_runs() -> Iterator[str]:
    """Yield two runs of each of three jobs, as records."""
    of_job: dict[str, list[str]] = {}
    with gzip.open(ROOT / "datasets" / "runs" / "runs.jsonl.gz", "rt") as lines:
        for line in lines:
            of_job.setdefault(json.dumps(json.loads(line)["job"]), []).append(line)
    for runs in itertools.islice(of_job.values(), 3):
        yield from runs[:2]
