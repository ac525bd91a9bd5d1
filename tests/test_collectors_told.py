"""What a script is told of devices: read from arguments, the environment and its own source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from collecting import record
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.format.events import Events
from advisor.collectors.format.why_cpu import Told, on_accelerators, told_of
from advisor.collectors.hooks.session import device_switches
from advisor.collectors.hooks.trace.device_choice import DeviceMentions


def source(folder: Path, text: str) -> DeviceMentions:
    path = folder / "train.py"
    path.write_text(text)
    return DeviceMentions(str(path))


FIXED = {
    "a variable": 'import torch\ndevice = torch.device("cpu")\n',
    "a text": 'device = "cpu"\n',
    "an attribute": 'class T:\n    def __init__(self):\n        self.device = "cpu"\n',
    "under the guard": 'if __name__ == "__main__":\n    device = "cpu"\n',
    "the model alone": 'model.to("cpu")\n',
    "a trainer's argument": 'trainer = Trainer(max_epochs=3, accelerator="cpu")\n',
    "training arguments": "args = TrainingArguments('out', use_cpu=True)\n",
}


@pytest.mark.parametrize("name", FIXED)
def test_a_device_fixed_in_the_source_is_found_with_its_place(tmp_path: Path, name: str) -> None:
    found = source(tmp_path, FIXED[name])
    (place,) = found.fixed
    assert place["where"].startswith("train.py:")
    assert "cpu" in place["text"]


FREE = {
    "a choice": 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n',
    "an if": 'if torch.cuda.is_available():\n    device = "cuda"\nelse:\n    device = "cpu"\n',
    "a default that is replaced": 'device = "cpu"\nif torch.cuda.is_available():\n'
    '    device = "cuda"\n',
    "an argument": "device = torch.device(args.device)\n",
    "results that are brought back": 'loss = loss.to("cpu")\nx = batch.cpu()\n',
    "where a checkpoint is read": 'state = torch.load("x.pt", map_location="cpu")\n',
    "a fallback": 'try:\n    device = pick()\nexcept RuntimeError:\n    device = "cpu"\n',
}


@pytest.mark.parametrize("name", FREE)
def test_a_device_that_is_chosen_is_not_fixed(tmp_path: Path, name: str) -> None:
    found = source(tmp_path, FREE[name])
    assert found.fixed == []


def test_a_source_that_names_no_device_says_so(tmp_path: Path) -> None:
    """A comment names nothing."""
    assert not source(tmp_path, "# runs on cuda some day\nmodel.fit(x)\n").mentions
    assert source(tmp_path, "x = x.to(device)\n").mentions
    assert source(tmp_path, "x = x.cuda()\n").mentions


def test_what_spreads_a_script_is_seen_by_name(tmp_path: Path) -> None:
    text = "from torch.nn.parallel import DistributedDataParallel as DDP\nimport deepspeed\n"
    assert source(tmp_path, text).spreads == {"DistributedDataParallel", "deepspeed"}
    assert source(tmp_path, "dist.init_process_group()\n").spreads == {"init_process_group"}
    own = "class Trainer:\n    pass\nTrainer().fit()\nself.x = Trainer()\n"
    assert source(tmp_path, own).spreads == set()


NAMED = {
    "from liger_kernel.transformers import AutoLigerKernelForCausalLM": ("chunked", False),
    "from liger_kernel.transformers import apply_liger_kernel_to_qwen3 as go\n": (
        "chunked",
        False,
    ),
    "args = TrainingArguments('out', use_liger_kernel=True)": ("chunked", False),
    "args = TrainingArguments('out', use_liger_kernel=False)": ("", False),
    "args = SFTConfig(loss_type='nll', optim='galore_adamw_layerwise')": ("eager", True),
    "loss = torchtune.modules.loss.LinearCrossEntropyLoss()": ("chunked", False),
    "model.weight.register_post_accumulate_grad_hook(step)": ("", True),
    "import torch\nloss = torch.nn.functional.cross_entropy(x, y)": ("", False),
}


@pytest.mark.parametrize("text", NAMED)
def test_a_source_says_how_its_loss_is_computed_and_when_it_updates(
    tmp_path: Path, text: str
) -> None:
    words = source(tmp_path, text).words
    assert (words.get("loss", ""), "optimizer_in_backward" in words) == NAMED[text]


GIVEN = {
    "train.py --use_liger_kernel --bf16": ("chunked", False),
    "train.py --use_liger_kernel false": ("", False),
    "trl sft --loss_type chunked_nll --optim lomo": ("chunked", True),
    "tune run full_finetune_single_device --config c optimizer_in_bwd=True": ("", True),
    "tune run x loss=torchtune.modules.loss.LinearCrossEntropyLoss": ("chunked", False),
    "-m torchtitan.train --optimizer.early_step_in_backward": ("", True),
}


@pytest.mark.parametrize("line", GIVEN)
def test_a_command_says_how_its_loss_is_computed_and_when_it_updates(line: str) -> None:
    events = Events(facts={"told": [{"words": {}, "files": 1}]})
    told = told_of(events, "cuda", line.split(), 1)
    assert told is not None
    assert (told.loss, told.updates_in_backward) == GIVEN[line]


@pytest.mark.parametrize(
    ("spreads", "stack"),
    [
        (["DistributedDataParallel", "init_process_group"], "ddp"),
        (["fully_shard"], "fsdp"),
        (["FSDP", "FullyShardedDataParallel"], "fsdp"),
        (["DistributedDataParallel", "FSDP"], ""),  # an argument may choose
        (["Fabric"], ""),
        (["DistributedDataParallel", "deepspeed"], ""),
        ([], ""),
    ],
)
def test_one_wrapper_by_name_is_the_stack(spreads: list[str], stack: str) -> None:
    events = Events(facts={"told": [{"spreads": spreads}]})
    told = told_of(events, "cuda", ["train.py"], 2)
    assert told is not None
    assert told.stack == stack
    alone = told_of(events, "cuda", ["train.py"], 1)
    assert alone == Told(spreads=tuple(spreads))
    # What its steps ran in is surer.
    seen = Events(facts={"told": [{"spreads": spreads, "stack": "trainer"}]})
    assert told_of(seen, "cuda", ["train.py"], 1) == Told(spreads=tuple(spreads), stack="trainer")


@pytest.mark.parametrize("text", ["def (", "\0", "x = " + "(" * 300 + ")" * 300])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    found = source(tmp_path, text)
    assert (found.fixed, found.mentions) == ([], False)
    assert DeviceMentions(str(tmp_path / "gone.py")).fixed == []


def told(command: str, **fact: Any) -> Told:
    nothing = {"switches": {}, "environment": {}, "fixed": [], "mentions": True, "files": 1}
    events = Events(facts={"told": [{**nothing, **fact}]})
    found = told_of(events, "cpu", command.split(), 1)
    assert found is not None
    return found


CHANGES = [
    ("train.py --no-cuda", {"no_cuda": True}, "train.py"),
    ("train.py --no_accel -b 8", {"no_accel": True}, "train.py -b 8"),
    ("train.py --cpu", {"cpu": True}, "train.py"),
    ("train.py --epochs 3", {"accel": False}, "train.py --epochs 3 --accel"),
    ("train.py --epochs 3", {"use_gpu": False}, "train.py --epochs 3 --use-gpu"),
    ("train.py --device cpu", {"device": "cpu"}, "train.py --device cuda"),
    ("train.py --device=cpu", {"device": "cpu"}, "train.py --device=cuda"),
    ("train.py", {"device": "cpu"}, "train.py --device cuda"),
    ("train.py --accelerator cpu", {"accelerator": "cpu"}, "train.py --accelerator gpu"),
    # Others than argparse: click, typer, Hydra, a configuration of one's own.
    ("train.py --no-cuda", {}, "train.py"),
    ("train.py --device cpu --lr 1", {}, "train.py --device cuda --lr 1"),
    ("train.py device=cpu lr=1", {}, "train.py device=cuda lr=1"),
    ("train.py trainer.accelerator=cpu", {}, "train.py trainer.accelerator=gpu"),
    # Nothing to change.
    ("train.py --device cuda", {"device": "cuda", "no_cuda": False}, "train.py --device cuda"),
    ("train.py --gpu-memory-limit", {}, "train.py --gpu-memory-limit"),
]


@pytest.mark.parametrize(("command", "switches", "changed"), CHANGES)
def test_arguments_that_keep_a_script_on_the_cpu_are_changed_on_the_command_line(
    command: str, switches: dict[str, Any], changed: str
) -> None:
    found = told(command, switches=switches)
    assert " ".join(on_accelerators(command.split(), found)) == changed
    assert bool(found.change) == (command != changed)
    assert found.by_hand == ""


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_accelerators_are_the_environments_doing(value: str) -> None:
    found = told("train.py", environment={"CUDA_VISIBLE_DEVICES": value})
    assert found.change == found.by_hand == "unset CUDA_VISIBLE_DEVICES"
    assert told("train.py", environment={"CUDA_VISIBLE_DEVICES": "0,1"}).change == ""


def test_the_source_is_asked_last() -> None:
    place = {"where": "train.py:31", "text": 'device = torch.device("cpu")'}
    found = told("train.py", fixed=[place])
    assert "train.py:31" in found.by_hand
    assert told("train.py --cpu", switches={"cpu": True}, fixed=[place]).change == "drop --cpu"
    assert '.to("cuda")' in told("train.py", mentions=False).change
    assert told("train.py").change == ""


def test_a_script_that_ran_on_an_accelerator_needs_no_change() -> None:
    events = Events(facts={"told": [{"switches": {"cpu": True}, "spreads": ["Fabric"]}]})
    assert told_of(events, "cuda", ["train.py"], 1) == Told(spreads=("Fabric",))
    assert told_of(Events(), "cpu", ["train.py"], 1) is None


@given(words=st.lists(st.sampled_from(["a", "--cpu", "--x", "cpu", "--device", "1"]), max_size=9))
def test_edits_change_nothing_else(words: list[str]) -> None:
    """Dropped and replaced words aside, the command stays as it was, in its order."""
    edits = ((("--cpu",), ()), (("--device", "cpu"), ("--device", "cuda")))
    changed = list(on_accelerators(words, Told(edits=edits)))
    assert "--cpu" not in changed
    kept = [word for word in words if word != "--cpu"]
    assert len(changed) == len(kept)
    pairs = list(zip(kept, changed, strict=True))
    assert all(new == old or (old, new) == ("cpu", "cuda") for old, new in pairs)
    assert on_accelerators(words, None) == tuple(words)


def test_only_switches_and_short_names_are_kept_of_the_arguments() -> None:
    class Namespace:
        device, no_cuda, gpu_token, api_key, device_count = "cpu", True, "x" * 200, "secret", 3

        def __init__(self) -> None:
            self.__dict__.update({k: getattr(self, k) for k in ("device", "no_cuda", "gpu_token")})
            self.__dict__.update(api_key="secret", device_count=3)

    assert device_switches(Namespace()) == {"device": "cpu", "no_cuda": True}


SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu")
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    loss = model(torch.randn(4, 8, device=device)).sum()
    loss.backward()
    optimizer.step()
"""


NO_CUDA = Told(reason="--no-cuda is given", change="drop --no-cuda", edits=((("--no-cuda",), ()),))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("--no-cuda",), NO_CUDA.change),
        pytest.param((), "unset CUDA_VISIBLE_DEVICES", marks=pytest.mark.slow),
    ],
)
def test_a_recording_says_what_the_script_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], change: str
) -> None:
    if arguments:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = record(tmp_path, SCRIPT, *arguments)
    assert seen.told is not None
    assert seen.told.change == change
    assert not arguments or seen.told == NO_CUDA
