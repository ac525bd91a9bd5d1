"""Every export is run: its shell on a stand-in of the machine, its command by the real parsers.

A machine (``export_machine``) has the packages that the target's machines have, and no others.
What the shell starts is read by torchrun's, accelerate's and DeepSpeed's own parsers, and the
script's stub is started with what they leave for it: it takes the case's arguments and no others.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_machine import PACKAGES, Machine, machine, started_script
from exporting import MACHINES, ask, recording_of, row_on

from advisor import api
from advisor.ask import Constraints, Question
from advisor.collectors.format.why_cpu import Told
from advisor.estimate.predictor import Predictor
from advisor.export.launch import NotRunnableError
from advisor.export.target import Exported, NotExportableError
from advisor.export.targets import TARGETS, export_to, write
from advisor.jobs.job import Job
from advisor.rank.ranking import recommend

pytestmark = pytest.mark.exports

MakeJob = Callable[..., Job]
MODEL = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 128, "batch": 64, "tokens": "1B"}
OWNERS = {"vertex": "gcp", "azureml": "azure"}
PROCESSORS = {"aws": "m5.xlarge", "gcp": "n2-standard-4", "azure": "Standard_D4s_v3"}
BARE = ("skypilot", "dstack")
OWN = ("torchrun", "accelerate", "deepspeed", "megatron")
RECORDED = ("python", "train.py", "--lr", "1e-3", "--name", "a b")
TAKES = "--lr --name --device"


@dataclass(frozen=True)
class Case:
    """An answer's row, and what it starts."""

    recorded: tuple[str, ...] = ()  # nothing: a described job
    on_processors: bool = False
    count: int = 1
    pricing: str = "on-demand"
    layout: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    takes: str = ""  # options of the script
    expected: tuple[str, ...] | None = ()  # the script's arguments; None for those of a framework
    refused_by: tuple[str, ...] = ()


# What a first machine may be called: as the target tells it, or by the service of its pods.
FIRST = ("10.0.0.1", "node-1", "resnet50-0.resnet50")
ON_GPU = (*RECORDED[2:], "--device", "cuda")
CASES: Mapping[str, Case] = {
    "recorded": Case(
        recorded=(*RECORDED, "--device", "cpu"), takes=TAKES, expected=ON_GPU,
        refused_by=("megatron",),
    ),
    "several on spot": Case(
        recorded=(*RECORDED, "--device", "cpu"), count=3, pricing="spot", takes=TAKES,
        expected=ON_GPU, refused_by=("megatron",),
    ),
    "without accelerators": Case(
        recorded=(*RECORDED, "--device", "cpu"), on_processors=True, takes=TAKES,
        expected=(*RECORDED[2:], "--device", "cpu"), refused_by=("megatron", "deepspeed"),
    ),
    "from a GPU to processors": Case(
        recorded=(*RECORDED, "--device=cuda:0"), on_processors=True, count=2, takes=TAKES,
        expected=(*RECORDED[2:], "--device=cpu"),
        refused_by=("megatron", "deepspeed", "accelerate"),
    ),
    "described": Case(),
    "described, named": Case(
        values={"script": "train.py --lr 1e-3 --name 'a b'"}, takes=TAKES, expected=RECORDED[2:]
    ),
    "described, ZeRO 2 on spot": Case(layout={"zero_stage": 2}, pricing="spot"),
    "described, ZeRO 3 on several": Case(layout={"zero_stage": 3}, count=2),
    "described, recomputed": Case(layout={"zero_stage": 3, "recompute": "full"}),
    "Trainer": Case(values={"framework": "trainer"}, expected=None),
    "Trainer, ZeRO 2": Case(
        layout={"zero_stage": 2}, values={"framework": "trainer"}, expected=None
    ),
    "Trainer, ZeRO 3 on several": Case(
        layout={"zero_stage": 3}, count=2, values={"framework": "trainer"}, expected=None
    ),
    "split": Case(layout={"tp": 2}, expected=None, refused_by=("accelerate", "deepspeed")),
}  # fmt: skip


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    told = Told(edits=((("--device", "cpu"), ("--device", "cuda")),))
    return replace(make_job(), told=told)


@pytest.fixture(scope="module")
def described(predictor: Predictor) -> Job:
    asked = Question.read(MODEL)
    return api.job_of(asked.job, asked.setup, catalogue=lambda: predictor.catalogue)


@pytest.fixture(scope="module")
def record(job: Job, predictor: Predictor) -> dict[str, Any]:
    answer = recommend(job, Constraints(providers=("aws",)), predictor=predictor)
    return dict(json.loads(json.dumps(answer.to_record())))


def row_of(record: dict[str, Any], case: Case, target: str) -> dict[str, Any]:
    owner = OWNERS.get(target, "aws")
    row = row_on(record, owner, count=case.count, pricing=case.pricing)
    devices = int(MACHINES[owner][4]) * case.count
    if case.on_processors:
        devices = case.count
        part = row["front"][0]["configuration"][0]
        part |= {"instance_type": PROCESSORS[owner], "accelerator": None}
        part["accelerators_per_instance"] = 0.0
        row["front"][0]["alternatives"] = []
    plain: dict[str, Any] = {
        "zero_stage": 0, "shard_group": None, "micro_batch": 1, "accumulation_steps": 2,
        "recompute": "none", "offload": [],
    }  # fmt: skip
    row["front"][0]["layout"] |= plain | dict(case.layout)
    row["front"][0]["layout"]["dp"] = devices // case.layout.get("tp", 1)
    return row


def script_of(case: Case) -> str:
    """A script whose parser takes the case's options alone, and no GPU where there is none."""
    if case.expected is None:  # the framework's own parser reads them
        return "import sys\n"
    lines = ["import argparse, os", "parser = argparse.ArgumentParser(allow_abbrev=False)"]
    lines += [f"parser.add_argument({one!r})" for one in case.takes.split()]
    lines += [
        "args = vars(parser.parse_args())",
        "has_none = os.environ['DEVICES'] == '0'",
        "assert not (has_none and 'cuda' in str(args.get('device'))), 'no CUDA device'",
    ]
    return "\n".join(lines) + "\n"


def start(made: Exported, on: Machine, case: Case) -> None:
    """Run the exported file's shell as the target would, on the first machine."""
    first = "10.0.0.1" if case.count > 1 else "localhost"
    name, text = next(iter(made.files.items()))
    variables: dict[str, str] = {}
    if made.target in OWN or made.target == "slurm":
        folder = on.root / "exported"
        shell = made.placed(write(made, folder / f"mine-{name}")).run.replace(
            "FIRST_MACHINE", first
        )
        variables = {"SLURM_JOB_NODELIST": "node-[1-2]"}
        shell = shell.replace("sbatch ", "bash ")
    elif made.target == "sagemaker":
        _peers(on, first)
        shell = made.files["run.sh"].replace("/opt/ml", shlex.quote(f"{on.root}/opt"))
    else:
        shell, variables = _service(made.target, list(yaml.safe_load_all(text)), first)
    done = on.run(shell, **variables)
    assert done.returncode == 0, done.stderr


def _peers(on: Machine, first: str) -> None:
    config = on.root / "opt" / "input" / "config"
    config.mkdir(parents=True)
    (config / "resourceconfig.json").write_text(json.dumps({"hosts": [first]}))
    (on.root / "opt" / "input" / "data").mkdir()
    (on.root / "opt" / "input" / "data" / "code").symlink_to(on.job)


def _service(target: str, documents: list[Any], first: str) -> tuple[str, dict[str, str]]:
    """The shell's text in a service's document, and the variables that the service sets."""
    last = documents[-1]
    if target == "skypilot":
        return f"{last['setup']}\n{last['run']}", {"SKYPILOT_NODE_IPS": f"{first}\n10.0.0.2"}
    if target == "dstack":
        return "\n".join(last["commands"]), {"DSTACK_MASTER_NODE_IP": first}
    if target == "azureml":
        return last["command"], {"MASTER_ADDR": first}
    if target == "kubernetes":
        box = last["spec"]["template"]["spec"]["containers"][0]
        return shlex.join([*box["command"], *box["args"]]), {}
    if target == "kubeflow":
        box = last["spec"]["trainer"]
        return shlex.join([*box["command"], *box["args"]]), {"PET_MASTER_ADDR": first}
    box = last["workerPoolSpecs"][0]["containerSpec"]
    peers = {"cluster": {"workerpool0": [f"{first}:2222"]}}
    return shlex.join([*box["command"], *box["args"]]), {"CLUSTER_SPEC": json.dumps(peers)}


def export(
    record: dict[str, Any], target: str, case: Case, on: Machine, jobs: tuple[Job, Job],
    predictor: Predictor,
) -> Exported:  # fmt: skip
    # An own machine runs the job where it was recorded; others get a copy.
    recording = recording_of(case.recorded, str(on.job)) if case.recorded else None
    values = dict(case.values)
    values |= {"folder": str(on.job)} if "folder" in TARGETS[target].blanks else {}
    return export_to(
        row_of(record, case, target), target, rank=1, job=jobs[0 if case.recorded else 1],
        recording=recording, predictor=predictor, values=values,
    )  # fmt: skip


def machine_of(target: str, case: Case, root: Path) -> Machine:
    needs = ["deepspeed"] if case.layout.get("zero_stage") == 2 else []
    needs += ["transformers", "accelerate"] if "framework" in case.values else []
    is_split = "tp" in case.layout or target == "megatron"
    devices = 0 if case.on_processors else 4
    return machine(
        root, script=script_of(case), devices=devices, has=() if target in BARE else ("torch",),
        needs=("megatron-core",) if is_split else needs,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_every_export_runs(
    target: str, record: dict[str, Any], job: Job, described: Job, predictor: Predictor,
    tmp_path: Path, record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    ran: list[tuple[str, Case, Machine]] = []
    for number, (name, case) in enumerate(CASES.items()):
        on = machine_of(target, case, tmp_path / str(number))
        if target in case.refused_by:
            with pytest.raises((NotExportableError, NotRunnableError)):
                export(record, target, case, on, (job, described), predictor)
            continue
        start(export(record, target, case, on, (job, described), predictor), on, case)
        ran.append((name, case, on))
    assert len(ran) >= 6, "a target that refuses every case is not run"
    notes = [(name, case, on, one) for name, case, on in ran for one in on.started]
    lone = [name for name, case, on in ran if not on.started]
    assert set(lone) <= {"without accelerators"}, "nothing was started"
    read = iter(ask("launched", [(json.dumps(one), {}) for *_, one in notes]))
    asked = list(_checked(target, notes, read))
    read_by_trainer = ask("trainer", [(json.dumps(one), {}) for one in asked]) if asked else []
    assert all(one == {"batch": 1, "passes": 2} for one in read_by_trainer)
    record_property("export_run", target)


def _checked(
    target: str, notes: list[tuple[str, Case, Machine, dict[str, Any]]], read: Iterator[Any]
) -> Iterator[dict[str, Any]]:
    """Compare what launchers would start with the case; yield what the Trainer's parser reads."""
    for name, case, on, one in notes:
        found = next(read)
        ranks = (1 if case.on_processors else on.devices) * case.count
        where = (target, name, found)
        assert (found["machines"], found["ranks"]) == (case.count, ranks), where
        if case.count > 1 and found["address"] is not None:
            assert found["address"].partition(":")[0] in FIRST, where
        assert (Path(one["folder"]) / found["script"]).exists(), where
        if case.expected is not None and target != "megatron":
            assert found["arguments"] == list(case.expected), where
            started_script(on, found["script"], found["arguments"], one["folder"])
        elif found["script"] == "train.py" and target != "accelerate":
            yield {"arguments": found["arguments"], "folder": one["folder"]}
        assert on.installed <= set(PACKAGES), where


def test_a_lone_process_is_started_without_a_launcher(
    record: dict[str, Any], job: Job, predictor: Predictor, tmp_path: Path
) -> None:
    """The smallest machine without accelerators: the script's own parser reads the command."""
    case = CASES["without accelerators"]
    on = machine_of("skypilot", case, tmp_path)
    row = row_of(record, case, "skypilot")
    row["front"][0]["configuration"][0]["instance_type"] = "t4g.micro"
    recording = recording_of(case.recorded, str(on.job))
    made = export_to(row, "skypilot", job=job, recording=recording, predictor=predictor)
    start(made, on, case)
    task = yaml.safe_load(made.files["task.yaml"])
    assert "cuda" not in task["run"]
    assert "torchrun" not in task["run"]
    assert not (on.root / "notes").exists()
