"""Rehearsals: fake is as real, what is known is true, nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advisor.api import estimate
from advisor.ask import Constraints
from advisor.catalogue import parse_gpus
from advisor.collectors.derive.summary import summary_lines
from advisor.collectors.format import Recording, rows_of
from advisor.collectors.hooks.rehearsal.allocator import replay, rounded
from advisor.collectors.run import profile, rehearsed
from advisor.errors import RunError
from advisor.estimate import Predictor, constants
from advisor.jobs.from_recording import job_from_recording
from advisor.planners.core import Operators
from advisor.rank.ranking import recommend

HERE = Path(__file__).parent
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")),
    reason="the shim is built by a C++ compiler",
)
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="Linux"), needs_compiler]


def asked(kind: str) -> Any:
    """Return what ``rehearsing.py`` finds, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(HERE / "rehearsing.py"), kind],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stderr[-3000:]
    return json.loads(found[-1][6:])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scripts that run for real write here."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def real() -> Any:
    return asked("real")


@pytest.fixture(scope="module")
def rehearsal() -> Any:
    return asked("rehearsed")


@pytest.fixture(scope="module")
def fake(rehearsal: Any) -> Any:
    return rehearsal["traced"]


def test_fake_operators_are_the_real_ones(real: Any, fake: Any) -> None:
    assert len(real) >= 12
    for name, seen in real.items():
        assert fake[name]["operators"] == seen["operators"], name


def test_fake_flop_parameters_and_states_are_the_real_ones(real: Any, fake: Any) -> None:
    for name, seen in real.items():
        for what in ("flop", "parameters", "states"):
            assert fake[name][what] == seen[what], (name, what)


def test_fake_peak_is_the_real_one(real: Any, fake: Any) -> None:
    for name, seen in real.items():
        assert fake[name]["peak"] == pytest.approx(seen["peak"], rel=0.02), name


def test_products_are_what_torch_counts(real: Any) -> None:
    for name in ("linear", "convolutions", "transposed", "bf16"):
        assert real[name]["flop"] >= real[name]["counted"] > 0, name


def test_values_that_depend_on_no_parameter_are_true(rehearsal: Any) -> None:
    assert rehearsal["values"] >= 100


def test_memory_on_the_device(rehearsal: Any) -> None:
    found = rehearsal["memory"]
    peaks = {int(batch): peak for batch, peak in found["peaks"].items()}
    # Affine in the batch beyond what the update needs: weights, gradients, two moments, a copy.
    assert peaks[4096] - peaks[2048] == pytest.approx(2 * (peaks[2048] - peaks[1024]), rel=0.02)
    assert peaks[64] >= 4 * found["weights"]
    value, is_finite, is_nan = found["loss"]
    assert 0 < value <= 1
    assert is_finite
    assert not is_nan
    assert found["sum_of_softmax"] == pytest.approx(1.0)
    assert found["half"] == ["torch.float16", "cuda"]
    assert found["is_tied"]
    assert found["is_known_to_optimizer"] == "cuda"
    assert any("rehearsing.py:" in note for note in found["notes"])


# The caching allocator, replayed.


blocks = st.tuples(st.integers(1, 40 << 20), st.booleans(), st.integers(0, 2))


@given(st.lists(blocks, min_size=1, max_size=60), st.booleans())
def test_segments_hold_what_lives(made: list[tuple[int, bool, int]], is_expandable: bool) -> None:
    events, held = [], []
    live, peaks = [0, 0, 0], [0, 0, 0]
    for key, (size, is_freed, stream) in enumerate(made):
        events.append((key, rounded(size), stream))
        live[stream] += rounded(size)
        peaks[stream] = max(peaks[stream], live[stream])
        held.append((key, rounded(size), stream))
        if is_freed:
            old, its, where = held.pop(0)
            events.append((old, -its, where))
            live[where] -= its
    reserved = replay(events, is_expandable=is_expandable)
    assert reserved is not None
    assert reserved >= sum(peaks)  # no stream takes another's blocks
    # A device that is full gives back what nothing lives in: never more than without a limit.
    limited = replay(events, reserved - 1, is_expandable=is_expandable)
    assert limited is None or limited < reserved
    assert reserved % (2 << 20) == 0
    # What was freed is used again: the same once more takes nothing.
    again = [*events, *((k, -s, w) for k, s, w in held)]
    assert replay(again, is_expandable=is_expandable) == reserved


def test_a_freed_block_is_used_again_in_its_stream() -> None:
    block = rounded(30 << 20)
    assert replay([(1, block, 0), (1, -block, 0), (2, block, 0)]) == 30 << 20
    assert replay([(1, block, 0), (1, -block, 0), (2, block, 1)]) == 60 << 20
    assert replay([(1, block, 0), (2, block, 0)]) == 60 << 20
    assert replay([(1, 512, 0), (2, 512, 0)]) == 2 << 20
    assert replay([(1, 2 << 20, 0)]) == 20 << 20


def test_an_expandable_segment_grows_where_another_would_be_taken() -> None:
    small, large = rounded(30 << 20), rounded(40 << 20)
    freed = [(1, small, 0), (1, -small, 0), (2, large, 0)]
    assert replay(freed) == 70 << 20
    assert replay(freed, is_expandable=True) == 40 << 20


# Whole scripts.


SCRIPT = """
    import pathlib, sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    pathlib.Path("out").mkdir(exist_ok=True)
    pathlib.Path("kept.txt").write_text("changed")
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Linear(50, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    labels = torch.arange(320) % 2
    loader = DataLoader(TensorDataset(torch.rand(320, 20), labels), 32, shuffle=True)
    for epoch in range(7):
        for x, y in loader:
            y = y.cuda()
            assert y.unique().tolist() == [0, 1]
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("loss", loss.item())
            torch.save(model.state_dict(), "out/model.pt")
            with open("out/log.txt", "a") as log:
                log.write("step")
            assert open("kept.txt").read() == "changed"
"""


def written(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def rehearse(folder: Path, text: str, *arguments: str, **options: Any) -> Recording:
    """Record a script; the folder is its own."""
    script = written(folder, text)
    return profile(
        [sys.executable, str(script), *arguments],
        run_root=folder.parent / "runs",
        rehearsal=rehearsed(**options),
        measure_host=False,
        limit_s=60.0,
    )


@pytest.mark.parametrize("cover", ["overlay", "redirected"])
def test_an_unchanged_script_is_rehearsed_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cover: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kept.txt").write_text("as it was")
    monkeypatch.chdir(folder)
    if cover == "redirected":
        monkeypatch.setenv("ADVISOR_REHEARSAL_OVERLAY", "redirected")
    seen = rehearse(folder, SCRIPT)
    assert seen.rehearsal is not None
    assert seen.step_time is None
    assert seen.deep_step is not None
    assert "train.py:8" in seen.rehearsal.why
    assert any("train.py:20" in note for note in seen.rehearsal.notes)
    assert seen.total_work is not None
    assert seen.total_work.steps == 70
    assert seen.deep_step.parameters == 20 * 50 + 50 + 50 * 2 + 2
    assert (seen.deep_step.samples, seen.deep_step.device) == (32, "cuda")
    assert (seen.fallbacks, seen.fallback_words) == ((), "")  # it goes without no kernel
    assert {path.name for path in folder.rglob("*")} == {"train.py", "kept.txt"}
    assert (folder / "kept.txt").read_text() == "as it was"
    job = job_from_recording(seen)
    assert job.measured is None
    assert job.is_rehearsed
    assert job.total_steps == 70
    assert job.work is not None
    assert any("rehearsed" in note for note in job.assumptions)


FALLS_BACK = """
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        loss = model(torch.rand(8, 4, device=device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_script_that_falls_back_to_the_processor_is_recorded(tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "work", FALLS_BACK)
    assert seen.rehearsal is None
    assert seen.step_time is not None


WITHOUT_KERNELS = """
    import logging, warnings
    import torch
    library = logging.getLogger("library")
    library.setLevel(logging.ERROR)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Mixer(torch.nn.Linear):
        def forward(self, x):
            library.warning("`scan` is falling back because `%s` is not installed", "mamba_ssm")
            warnings.warn("xFormers is not available (Attention)")
            library.warning("flash_attn 2.8 is used, apex too")
            state = torch.zeros_like(x[:, 0])
            for moment in range(100):
                state = 0.9 * state + x[:, moment]
            return super().forward(state)

    first, model = torch.nn.Linear(4, 4).to(device), Mixer(4, 1).to(device)
    optimizer = torch.optim.SGD([*first.parameters(), *model.parameters()], lr=0.1)
    for step in range(30):
        loss = model(first(torch.rand(8, 100, 4, device=device))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("when", ["always", "never"])
def test_fast_kernels_that_a_script_goes_without_are_said(
    tmp_path: Path, predictor: Predictor, when: Any
) -> None:
    """Heard in logs that nobody shows and in warnings; said beside every answer.

    What a kernel in place of the loop would make of it is offered where nothing was measured.
    """
    seen = rehearse(tmp_path / "work", WITHOUT_KERNELS, when=when)
    assert (seen.rehearsal is not None) == (when == "always")
    assert seen.deep_step is not None
    assert seen.deep_step.device == ("cuda" if when == "always" else "cpu")
    assert set(seen.fallbacks) == {"mamba-ssm", "xformers"}
    said = seen.fallback_words
    assert any(said in line for line in summary_lines(seen))
    job = job_from_recording(seen, total_steps=1e6)
    for answer in (
        estimate(job, gpu="L4", predictor=predictor),
        estimate(job, on="g6.xlarge", predictor=predictor),
    ):
        assert said in answer.notes
        assert any("No input pipeline" in note for note in answer.notes) == (when == "always")
    request = Constraints(gpus=parse_gpus("L4"), max_nodes=1)
    found = recommend(job, request, predictor=predictor, recording=seen, with_changes=True)
    assert said in found.summary
    offered = [one for one in found.changes if one.name == "fast-kernels"]
    assert len(offered) == (when == "always")
    for one in offered:
        assert "mamba-ssm" in one.do
        assert one.time_factor < 1.0


def test_a_rehearsal_can_be_refused(tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "work", SCRIPT, when="never")
    assert seen.rehearsal is None
    assert seen.exit_code == 1


def test_a_script_that_gives_up_without_a_device_is_rehearsed(tmp_path: Path) -> None:
    text = FALLS_BACK.replace(
        "    device =", "    assert torch.cuda.is_available(), 'needs a GPU'\n    device ="
    )
    seen = rehearse(tmp_path / "work", text)
    assert seen.rehearsal is not None
    assert "is_available" in seen.rehearsal.why


def test_an_error_that_is_the_scripts_own_stays_its_own(tmp_path: Path) -> None:
    text = "import torch\ntorch.cuda.is_available()\nimport no_such_package\n"
    seen = rehearse(tmp_path / "work", text)
    assert seen.rehearsal is None
    assert seen.exit_code == 1


DISTRIBUTED = """
    import os, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    model = DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        loss = model(torch.rand(16, 512).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_data_parallel_exchanges_its_gradients(tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "work", DISTRIBUTED, when="always", devices=8, ranks=16, rank=11)
    assert seen.rehearsal is not None
    assert seen.world_size == 16
    assert seen.rehearsal.rank == 11
    sent = {one.name: one.bytes for one in seen.rehearsal.collectives}
    assert sent["allreduce_"] == 4 * 4 * (512 * 512 + 512)
    assert job_from_recording(seen).global_batch == 16 * 16


SHARDED = """
    import os, torch, torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(50):
        loss = model(torch.rand(16, 512, device="cuda")).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_shards_add_up_to_the_model(tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "work", SHARDED, when="always", devices=4, ranks=4)
    assert seen.rehearsal is not None
    held, weights = seen.rehearsal.held_bytes, 4 * 4 * 512 * 512
    assert 4 * held["parameters"] == weights
    # What distributed tensors ask of whole shapes is no memory: segments hold shards and a layer.
    assert seen.rehearsal.reserved_bytes is not None
    assert seen.rehearsal.peak_bytes is not None
    assert seen.rehearsal.reserved_bytes <= seen.rehearsal.peak_bytes + (200 << 20)
    assert 4 * held["optimizer state"] == pytest.approx(2 * weights, rel=0.01)
    sent = {one.name: one.bytes for one in seen.rehearsal.collectives}
    gathered = sum(size for name, size in sent.items() if "gather" in name)
    scattered = sum(size for name, size in sent.items() if "scatter" in name)
    assert scattered == pytest.approx(weights, rel=0.01)
    assert weights <= gathered <= 2 * weights  # again in the backward pass, but for the last
    work = job_from_recording(seen).work
    assert work is not None
    updated = sum(one.bytes for one in work.operators if one.phase == "optimizer")
    assert updated >= 5 * weights  # all of it, though a rank updates a quarter


DIVIDED = """
    import os
    import sys

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module,
    )

    way, world = sys.argv[1], int(os.environ.get("WORLD_SIZE", 1))

    class Alike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad)
            return grad

    class Added(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            wide = 1024 // (world if way == "hand" else 1)
            self.norm = nn.LayerNorm(256)
            self.up, self.down = nn.Linear(256, wide, False), nn.Linear(wide, 256, False)

        def forward(self, x):
            if way == "hand":
                return x + Added.apply(self.down(self.up(Alike.apply(self.norm(x))).relu()))
            return x + self.down(self.up(self.norm(x)).relu())

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(256, 10)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    if way == "hand":
        dist.init_process_group("nccl")
    model = Stack().cuda()
    if way == "columns":
        mesh = init_device_mesh("cuda", (world,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(20):
        model(torch.rand(8, 32, 256, device="cuda")).square().mean().backward()
        if way == "pipeline":
            dist.init_process_group("nccl") if step == 0 else None
            dist.send(torch.ones(8, device="cuda"), 1)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_divided_models_work_is_the_whole_ones(tmp_path: Path) -> None:
    jobs = {}
    for way, ranks in (("alone", 1), ("columns", 4), ("hand", 4)):
        seen = rehearse(tmp_path, DIVIDED, way, devices=ranks, ranks=ranks, when="always")
        jobs[way] = job_from_recording(seen, total_steps=1000)
    alone = jobs["alone"].work
    assert alone is not None
    for way in ("columns", "hand"):
        assert jobs[way].global_batch == 8, way
        work = jobs[way].work
        assert work is not None
        for name in ("parameters", "parameter_bytes", "trainable_parameters", "gradient_bytes"):
            assert getattr(work, name) == getattr(alone, name), (way, name)
        assert work.optimizer_state_bytes == pytest.approx(alone.optimizer_state_bytes, rel=0.001)
        for phase in ("forward", "backward"):
            found, expected = (
                sum(one.flop for one in each.operators if one.phase == phase and "mm" in one.name)
                for each in (work, alone)
            )
            assert found == expected, (way, phase)
        # What every rank repeats (norms, sums) counts once; ranks add what one device needs not.
        found, expected = (
            sum(one.bytes for one in each.operators if one.phase != "optimizer")
            for each in (work, alone)
        )
        assert found == pytest.approx(expected, rel=0.15), way
        assert work.saved_bytes_per_sample == pytest.approx(alone.saved_bytes_per_sample, rel=0.1)


BLOCKS = """
    import sys
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        x = torch.rand(int(sys.argv[1]), 256, 512, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_every_answer_has_the_memory_that_was_rehearsed(
    tmp_path: Path, predictor: Predictor
) -> None:
    context = constants().memory.alone_context_bytes
    seen = {batch: rehearse(tmp_path, BLOCKS, str(batch)) for batch in (16, 32)}
    job = job_from_recording(seen[16], total_steps=1000)
    for batch, recording in seen.items():
        rehearsal, deep = recording.rehearsal, recording.deep_step
        assert rehearsal is not None
        assert deep is not None
        assert rehearsal.reserved_bytes is not None
        assert deep.peak_bytes == rehearsal.peak_bytes == sum(rehearsal.held_bytes.values())
        expected = (rehearsal.reserved_bytes + context) / 2**30
        own = job_from_recording(recording, total_steps=1000)
        asked = job_from_recording(seen[16], total_steps=1000, global_batch=batch)
        for one, off in ((own, 0.01), (asked, 0.05)):
            (found,) = predictor.predict(one, ["g5.xlarge"]).candidates
            assert found.layout.micro_batch == batch
            assert found.memory_gib == pytest.approx(expected, rel=off), batch
    assert job.work is not None
    assert job.work.slack is not None


def test_a_stage_of_a_pipeline_is_not_priced_as_the_whole(tmp_path: Path) -> None:
    seen = rehearse(tmp_path, DIVIDED, "pipeline", devices=4, ranks=4, when="always")
    with pytest.raises(RunError, match="pipeline"):
        job_from_recording(seen, total_steps=1000)


def test_torchs_compiler_is_imported_for_those_who_ask_for_it(tmp_path: Path) -> None:
    seen = rehearse(
        tmp_path,
        """
        import sys
        import torch

        def loaded():
            return sum(name.startswith("torch._dynamo") for name in sys.modules)

        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(20):
            model(torch.ones(4, 8).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                assert loaded() < 10, loaded()
                from torch._dynamo.source import AttrSource
                from torch._dynamo.utils import same

                assert same(1, 1)
                assert AttrSource is torch._dynamo.source.AttrSource
                assert torch._dynamo.config.suppress_errors in (True, False)
                assert loaded() > 10
                torch._dynamo.reset()
    """,
    )
    assert seen.stop_reason == "the rehearsal is over"
    assert seen.deep_step is not None


KERNELS = """
    import os
    import torch
    from torch import nn
    from torch.nn import functional as F

    norm, up = nn.RMSNorm(64).cuda(), nn.Linear(64, 128).cuda()
    optimizer = torch.optim.AdamW([*norm.parameters(), *up.parameters()])
    for step in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            x = up(norm(torch.randn(2, 30, 64, device="cuda")))
            q, k = x.view(2, 30, 8, 16).transpose(1, 2), x[..., :32].view(2, 30, 2, 16)
            k = F.silu(k.transpose(1, 2))
            y = F.scaled_dot_product_attention(q, k, k, enable_gqa=True).transpose(1, 2)
        scores = y.flatten(2).float().log_softmax(-1).transpose(0, 1)
        targets = torch.randint(1, 128, (2, 7), device="cuda")
        lengths = torch.full((2,), 30), torch.tensor([7, 5])  # on the processor
        F.ctc_loss(scores, targets, *lengths).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save({"model": up.state_dict(), "step": step}, "last.pt")
        assert os.path.exists("last.pt")
        found = torch.load("last.pt", map_location="cuda")
        assert found["step"] == step
        up.load_state_dict(found["model"])
"""


def test_kernels_are_those_of_cuda_and_a_checkpoint_is_loaded_as_it_was_saved(
    tmp_path: Path,
) -> None:
    seen = rehearse(tmp_path, KERNELS)
    assert "exit code" not in (seen.stop_reason or "")
    assert not (tmp_path / "last.pt").exists()
    assert seen.deep_step is not None
    made = dict(rows_of(seen.deep_step.operators, "name", "shapes"))
    assert {"aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"} <= set(made)
    assert {"aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::silu_backward"} <= set(made)
    flash = made["aten::_scaled_dot_product_flash_attention"]
    assert flash.startswith("2x8x30x16,2x2x30x16")  # no copies of the heads of keys


EXPERTS = """
    import torch
    from torch import nn

    device = "%s"
    gate = nn.Linear(512, 4).to(device)
    experts = nn.ModuleList(nn.Linear(512, 512) for _ in range(4)).to(device)
    optimizer = torch.optim.AdamW([*gate.parameters(), *experts.parameters()])
    for step in range(12):
        x = torch.rand(2048, 512, device=device)
        shares, chosen = gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows = (chosen == number).nonzero()[:, 0]
            %s
            out.index_add_(0, rows, expert(x[rows]) * shares[rows, None])
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_the_network_decides_is_bounded_from_both_sides(
    tmp_path: Path, predictor: Predictor
) -> None:
    seen = rehearse(tmp_path, EXPERTS % ("cuda", ""))
    assert seen.deep_step is not None
    least, most = (
        sum(operators["flop"])
        for operators in (seen.deep_step.least_operators, seen.deep_step.operators)
    )
    real = rehearse(tmp_path, EXPERTS % ("cpu", ""), when="never")
    assert real.deep_step is not None
    assert least < sum(real.deep_step.operators["flop"]) < most / 2
    job = job_from_recording(seen, total_steps=1e6)
    assert job.work is not None
    none = Operators.of(())
    outer = [
        replace(job, work=replace(job.work, operators=operators, least_operators=none))
        for operators in (job.work.least_operators, job.work.operators)
    ]
    for machine in ("g5.xlarge", "8 x p4d.24xlarge"):
        (found,) = predictor.predict(job, [machine]).candidates
        for side in outer:
            (one,) = predictor.predict(side, [machine]).candidates
            time_h = one.training_time_h.value
            assert found.training_time_h.low <= time_h <= found.training_time_h.high


def test_a_script_that_needs_more_than_the_least_keeps_its_upper_bound(tmp_path: Path) -> None:
    seen = rehearse(tmp_path, EXPERTS % ("cuda", "assert len(rows) > 1, 'too few'"))
    assert seen.deep_step is not None
    assert seen.deep_step.operators
    assert not seen.deep_step.least_operators
    assert seen.exit_code == 0


def test_no_compiler_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.collectors.hooks.rehearsal import shim

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(shim.CannotRehearseError, match="compiler") as error:
        shim.build(str(Path(str(torch.__file__)).parent))
    assert "apt install" in error.value.hint


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    from advisor.collectors.errors import RecordingError

    with pytest.raises(RecordingError, match="no rank 4"):
        rehearsed(ranks=4, rank=4)


def test_a_rehearsal_without_a_step_cannot_be_asked(tmp_path: Path) -> None:
    seen = rehearse(tmp_path / "work", "import torch\ntorch.rand(3).cuda()\n", when="always")
    assert seen.rehearsal is not None
    assert seen.deep_step is None
    with pytest.raises(RunError):
        job_from_recording(seen)
