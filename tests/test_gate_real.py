"""The gate where it is asked: SkyPilot's own policy hook, a real ``sbatch`` with its filter."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import TOOLS, Slurm, cluster, installed

from advisor.gate.sbatch import read_command

pytestmark = pytest.mark.exports
ROOT = Path(__file__).parents[1]
MODEL = {"LAYERS": "24", "HIDDEN": "2048", "HEADS": "16", "SEQUENCE": "2048", "BATCH": "64",
         "TOKENS": "500M"}  # fmt: skip
# Which cards every task keeps: the policy is asked as SkyPilot's client and server ask it.
_ASK = """
import json, os, sys, sky
from sky.server.requests import request_names
from sky.utils import admin_policy_utils
for content, variables in json.load(sys.stdin):
    os.environ.update(variables)
    task = sky.Task.from_yaml_config(content)
    try:
        dag, _ = admin_policy_utils.apply(
            task, request_names.AdminPolicyRequestName.CLUSTER_LAUNCH, at_client_side=True)
        said = {"cards": sorted(c for r in dag.tasks[0].resources for c in r.accelerators)}
    except sky.exceptions.UserRequestRejectedByPolicy as error:
        said = {"refused": str(error)}
    for name in variables:
        del os.environ[name]
    print("SAID " + json.dumps(said))
"""
Task = dict[str, object]


def skypilot() -> str | None:
    """Return a Python that has SkyPilot; None where there is none."""
    asked = [TOOLS, "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('sky'))"]
    if not Path(TOOLS).exists() or subprocess.run(asked, check=False).returncode:
        return None
    return TOOLS


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The advisor as one program, whatever environment asks it."""
    path = tmp_path_factory.mktemp("bin") / "advisor"
    path.write_text(
        "#!/bin/sh\nunset LD_LIBRARY_PATH\n"
        f'PYTHONPATH={ROOT} exec {sys.executable} -m advisor.cli "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _policy(asked: list[tuple[Task, dict[str, str]]], home: Path, command: Path) -> list[Task]:
    """Return what SkyPilot's hook makes of tasks, each with more variables of the environment."""
    python = skypilot()
    if python is None:
        pytest.skip("SkyPilot is not installed: make test-exports")
    (home / ".sky").mkdir()
    (home / ".sky/config.yaml").write_text("admin_policy: advisor.gate.skypilot.AdvisorPolicy\n")
    environ = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT),
               "ADVISOR_COMMAND": str(command)}  # fmt: skip
    ended = subprocess.run(
        [python, "-c", _ASK], input=json.dumps(asked), env=environ, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    said = [line for line in ended.stdout.splitlines() if line.startswith("SAID ")]
    assert len(said) == len(asked), ended.stderr[-2000:]
    return [json.loads(line.removeprefix("SAID ")) for line in said]


def test_skypilot_drops_what_is_refused_and_rejects_what_has_nothing_left(
    tmp_path: Path, command: Path
) -> None:
    envs = {f"ADVISOR_{name}": value for name, value in MODEL.items()}
    unnamed: Task = {
        "num_nodes": 2,
        "run": "python train.py",
        "resources": {"any_of": [{"accelerators": "A100:8"}, {"accelerators": "L4:1"}]},
    }
    named = unnamed | {"envs": envs}
    slow = unnamed | {"envs": envs | {"ADVISOR_DEADLINE": "3h"}}
    passed, strict, kept, none = _policy(
        [(unnamed, {}), (unnamed, {"ADVISOR_GATE_STRICT": "1"}), (slow, {}),
         (named, {"ADVISOR_DEADLINE": "5m"})],
        tmp_path, command,
    )  # fmt: skip
    assert passed == {"cards": ["A100", "L4"]}  # it names no job
    assert "cannot be judged" in str(strict["refused"])
    assert kept == {"cards": ["A100"]}  # two L4 take a day
    text = str(none["refused"])
    assert "the deadline is 5.00 min" in text
    assert "Would do: " in text or "Nearest: " in text


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A controller whose sbatch asks the gate."""
    prefix = installed()
    if prefix is None:
        pytest.skip("Slurm is not installed: .ci/slurm .venv-exports/slurm")
    folder = tmp_path_factory.mktemp("slurm") / "etc"
    with cluster(prefix, folder, more="CliFilterPlugins=lua\n") as running:
        yield running


def _filter(slurm: Slurm, text: str) -> None:
    (slurm.folder / "cli_filter.lua").write_text(text)


def test_sbatch_refuses_what_breaks_its_own_time_limit(
    slurm: Slurm, command: Path, tmp_path: Path
) -> None:
    _filter(slurm, (ROOT / "advisor/gate/cli_filter.lua").read_text())
    said = " ".join(f"{name.lower()}={value}" for name, value in MODEL.items())
    script = tmp_path / "train it.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:a100:8 --time=12:00:00\n"
        f"#ADVISOR {said}\nsrun python train.py\n"
    )
    environ = {"ADVISOR_COMMAND": str(command),
               "ADVISOR_GATE_PARTITION": "gpu=8xA100-80GB:nvlink@200Gbps"}  # fmt: skip
    asked = ("sbatch", "--test-only")
    passing = slurm.run(*asked, str(script), environ=environ)
    assert passing.returncode == 0, passing.stderr
    assert "nodes node[1-2]" in passing.stderr
    short = slurm.run(*asked, "--time=5", str(script), environ=environ)
    assert short.returncode != 0
    told = " ".join(short.stderr.replace("sbatch: lua:", " ").split())  # as if not wrapped
    assert "the time limit of the submission is 5.00 min" in told
    broken = {**environ, "ADVISOR_COMMAND": "/nowhere/advisor"}
    without = slurm.run(*asked, "--time=5", str(script), environ=broken)
    assert without.returncode == 0  # a gate that cannot answer stops nobody
    assert "did not judge" in without.stderr


_TELL = """
function slurm_cli_setup_defaults(o, e) return slurm.SUCCESS end
function slurm_cli_pre_submit(o, p)
  slurm.log_info("READ %s", slurm.json_cli_options(o))
  return slurm.ERROR
end
function slurm_cli_post_submit(o, j, s) return slurm.SUCCESS end
"""


def test_command_lines_are_read_as_slurm_reads_them(slurm: Slurm, tmp_path: Path) -> None:
    """Random options, in every form, on the command line, in the environment, in the script."""
    _filter(slurm, _TELL)
    rng = random.Random(3)
    forms = {
        "nodes": (["-N{}", "-N {}", "--nodes={}", "--nodes {}"], ["1", "2", "3"]),
        "gres": (["--gres={}", "--gres {}"], ["gpu:8", "gpu:a100:4"]),
        "gpus": (["-G{}", "--gpus {}"], ["8", "a100:4"]),
        "gpus-per-node": (["--gpus-per-node={}"], ["2", "a100:8"]),
        "ntasks-per-node": (["--ntasks-per-node={}"], ["1", "8"]),
        "partition": (["-p {}", "-pgpu", "--partition={}"], ["gpu"]),
        "time": (["-t{}", "-t {}", "--time={}"], ["90", "4:00:00", "1-12"]),
    }
    others = ["-J name", "--exclusive", "-H", "--mail-type=END", "--requeue", "-o out.txt",
              "--comment 'gpu:9 --nodes=7'", "--export=NONE", "-x node4"]  # fmt: skip
    script = tmp_path / "a.sh"
    for _ in range(25):
        names = rng.sample(list(forms), 4)
        words = [rng.choice(forms[n][0]).format(rng.choice(forms[n][1])) for n in names]
        words += rng.sample(others, 3)
        rng.shuffle(words)
        script.write_text("#!/bin/sh\n" + "".join(f"#SBATCH {w}\n" for w in words[:4]) + "true\n")
        line = [part for word in words[4:] for part in _split(word)]
        environ = {"SBATCH_TIMELIMIT": "77", "SBATCH_GPUS_PER_NODE": "5"}
        said = slurm.run("sbatch", *line, str(script), environ=environ, cwd=tmp_path).stderr
        slurms = json.loads(said.partition("READ ")[2].splitlines()[0])
        ours = read_command([*line, str(script)], environ, tmp_path)
        for name in forms:
            assert _plain(ours.get(name)) == _plain(slurms.get(name)), (name, line, words)


def _split(word: str) -> list[str]:
    import shlex

    return shlex.split(word)


def _plain(value: str | None) -> str | None:
    """Return a value without the ways in which Slurm writes it back."""
    from advisor.gate.sbatch import time_limit_h

    if value is None:
        return None
    text = value.removeprefix("gres:").removeprefix("gpu:")
    if (":" in text and text.replace(":", "").replace("-", "").isdigit()) or text.isdigit():
        return str(time_limit_h(text))
    return str(time_limit_h(text)) if "-" in text else text
