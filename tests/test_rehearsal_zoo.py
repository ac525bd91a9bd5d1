"""Scripts as people write them, one a construction: each reaches a step that is right.

``zoo/written/README.md`` says where the constructions are from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor import api
from advisor.collectors.derive import recording_problem
from advisor.collectors.format import Recording, rows_of
from advisor.collectors.run import profile, rehearsed
from advisor.errors import RunError
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Feed

WRITTEN = Path(__file__).parent / "zoo" / "written"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux"),
    pytest.mark.skipif(
        not any(shutil.which(name) for name in ("c++", "g++", "clang++")),
        reason="the shim is built by a C++ compiler",
    ),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of a script."""
    found = tmp_path / "work"
    found.mkdir()
    monkeypatch.chdir(found)
    return found


def seen(name: str, *arguments: str, when: str = "always", **asked: Any) -> Recording:
    """Rehearse a script of the zoo in the working folder."""
    return profile(
        [sys.executable, str(WRITTEN / name), *arguments],
        run_root=Path.cwd().parent / "runs",
        rehearsal=rehearsed(when=when) | asked,
        measure_host=False,
        limit_s=60.0,
    )


def check(name: str, found: Recording) -> None:
    """Hold a rehearsal to what is said at the head of its script."""
    head = (WRITTEN / name).read_text().splitlines()[0]
    said = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", head)}
    assert found.rehearsal is not None
    assert found.deep_step is not None, found.stop_reason
    assert found.total_work is not None
    assert {
        "batch": found.deep_step.samples,
        "parameters": found.deep_step.parameters,
        "steps": found.total_work.steps,
    } == said


def test_weights_lie_where_they_are_asked_for(folder: Path) -> None:
    classes = torch.arange(3.0)
    torch.save({"classes": classes, "nested": [torch.ones(2)], "shared": classes}, "held.pt")
    torch.save(torch.nn.Linear(3, 3), "whole.pt")
    found = seen("weights.py")
    check("weights.py", found)
    assert found.rehearsal is not None
    assert any("net-0123.pth are not here" in note for note in found.rehearsal.notes)
    assert {one.name for one in folder.iterdir()} == {"held.pt", "whole.pt"}


@pytest.mark.parametrize("cover", ["overlay", "redirected"])
def test_files_and_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cover: str
) -> None:
    (folder / "kept.txt").write_text("as it was")
    if cover == "redirected":  # as on a system that makes no namespaces
        monkeypatch.setenv("ADVISOR_REHEARSAL_NO_OVERLAY", "1")
    found = seen("files.py")
    check("files.py", found)
    assert ("makes no overlays" in capfd.readouterr().err) == (cover == "redirected")
    assert {one.name for one in folder.iterdir()} == {"kept.txt"}
    assert (folder / "kept.txt").read_text() == "as it was"


MOUNTS = """
    mount -t tmpfs none volume && echo real > volume/data && exec "$@"
"""
IN_MOUNT = """
import os, runpy, sys
assert os.environ["ADVISOR_REHEARSAL_OVERLAY"] == "overlay"
assert open("volume/data").read() == "real\\n"
for path in ("volume/data", "volume/other", "beside"):
    open(path, "w").write("rehearsed")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_mount_below_the_working_folder_has_an_overlay_of_its_own(folder: Path) -> None:
    (folder / "volume").mkdir()
    (folder / "kept.txt").write_text("as it was")
    (folder / "train.py").write_text(IN_MOUNT)
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own, "mount", "-t", "tmpfs", "none", "volume"], check=False).returncode:
        pytest.skip("nobody may mount here")
    code = (
        "import sys; from pathlib import Path; from advisor.collectors.run import *;"
        "seen = profile([sys.executable, *sys.argv[1:]], run_root=Path('..', 'runs'),"
        "rehearsal=rehearsed(when='always'), measure_host=False, limit_s=60.0);"
        "print('SAMPLES', seen.deep_step and seen.deep_step.samples, seen.stop_reason);"
        "print(sorted(p.name for p in Path('.').iterdir()), Path('volume/data').read_text())"
    )
    done = subprocess.run(
        [*own, "sh", "-c", MOUNTS, "sh", sys.executable, "-c", code, "train.py",
         str(WRITTEN / "files.py")],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "SAMPLES 32 the rehearsal is over" in done.stdout, done.stdout + done.stderr
    assert "['kept.txt', 'train.py', 'volume'] real" in done.stdout


def test_names_of_old() -> None:
    check("names_of_old.py", seen("names_of_old.py"))


def test_passes_that_are_left_out_are_counted() -> None:
    """The step is the one in which every pass was made."""
    counted, made = seen("accumulates.py"), seen("accumulates.py", "looked-into")
    check("accumulates.py", counted)
    check("accumulates.py", made)
    assert counted.deep_step is not None
    assert made.deep_step is not None
    both = counted.deep_step.operators, made.deep_step.operators
    columns = ("name", "phase", "dtype", "shapes", "count", "flop", "bytes", "fixed_bytes")
    # What a script does with a loss after a pass counts to the next one, which adds, not begins.
    rows = [sorted(row for row in rows_of(one, *columns) if row[5] > 9 * row[4]) for one in both]
    assert len(rows[0]) > 25
    assert rows[0] == rows[1]
    assert sum(both[0]["bytes"]) == pytest.approx(sum(both[1]["bytes"]), rel=1e-3)
    assert counted.deep_step.micro_batches == made.deep_step.micro_batches == 10
    assert counted.deep_step.peak_bytes == pytest.approx(made.deep_step.peak_bytes, rel=1e-3)


@pytest.mark.parametrize(("rate", "is_rehearsed"), [(1e6, True), (1e15, False)])
def test_a_first_step_that_is_hopeless_here_is_rehearsed(
    capfd: pytest.CaptureFixture[str], rate: float, is_rehearsed: bool
) -> None:
    found = seen("chooses_device.py", when="wanted", flop_per_s=rate)
    assert (found.rehearsal is not None) == is_rehearsed
    assert ("on this processor): rehearsing" in capfd.readouterr().err) == is_rehearsed
    if is_rehearsed:
        check("chooses_device.py", found)


# What a processor would not do as CUDA does it, or not without a compiler.
MEANT_FOR_CUDA = {
    "compiled": "model = torch.compile(model)",
    "in 16 bits": "torch.autocast('cuda', torch.bfloat16).__enter__()",
}


@pytest.mark.parametrize("which", MEANT_FOR_CUDA)
@pytest.mark.parametrize("when", ["wanted", "never"])
def test_what_is_meant_for_cuda_is_not_tried_on_a_processor(
    folder: Path, which: str, when: str
) -> None:
    text = (WRITTEN / "chooses_device.py").read_text()
    line = "optimizer = "
    script = folder / "meant.py"
    script.write_text(text.replace(line, f"{MEANT_FOR_CUDA[which]}\n{line}"))
    if when == "never" and which == "compiled":
        script.write_text(
            script.read_text().replace("compile(model", "compile(model, backend='eager'")
        )
    found = seen(str(script), when=when)
    assert (found.rehearsal is not None) == (when == "wanted")
    assert found.deep_step is not None
    assert found.deep_step.samples == 64


def test_what_was_done_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert seen("chooses_device.py", when="wanted", flop_per_s=1e15).rehearsal is None
    assert "is quick on this processor: recorded" in capfd.readouterr().err


def test_a_flag_that_ends_a_loop_stands_for_its_comparison(folder: Path) -> None:
    """As ``is_last = step == budget // size``, where no argument has the number."""
    text = (WRITTEN / "chooses_device.py").read_text()
    text = text.replace("seen = 0", "seen = 0; step = 0; last = config.total_tokens // 1024")
    text = text.replace("while seen >= 0:\n", "while True:\n    is_last = step == last\n"
                        "    if is_last:\n        break\n    step += 1\n")  # fmt: skip
    (folder / "flag.py").write_text(text.replace("total_tokens", "of_all"))
    check("chooses_device.py", seen(str(folder / "flag.py")))


def test_a_rehearsal_that_was_refused_is_not_begun() -> None:
    found = seen("chooses_device.py", when="never", flop_per_s=1e6)
    assert found.rehearsal is None
    assert found.step_time is not None


# Each stands for constructions of several public repositories: see its README.
CONSTRUCTIONS = [
    "acts_in_rounds", "adapts", "adversarial", "detects", "graphs", "listens", "prefetches",
    "remembers", "teaches",
]  # fmt: skip


@pytest.mark.parametrize("cover", ["overlay", "redirected"])
@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_a_construction_reaches_a_step_that_is_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, cover: str
) -> None:
    if cover == "redirected":
        monkeypatch.setenv("ADVISOR_REHEARSAL_NO_OVERLAY", "1")
    check(f"{name}.py", seen(f"{name}.py"))
    assert list(folder.iterdir()) == []


def test_adapters_arrive_in_the_job(folder: Path) -> None:
    """In the words of options, beside a base as wide as it was loaded."""
    jobs = {}
    for width in ("float", "bfloat16"):
        text = (WRITTEN / "adapts.py").read_text()
        script = folder / f"{width}.py"
        script.write_text(text.replace("model = model.cuda()", f"model = model.cuda().{width}()"))
        jobs[width] = job_from_recording(seen(str(script))).work
    for width, work in jobs.items():
        assert work is not None
        setup = work.setup
        assert (setup.adapter_rank, setup.adapter_targets) == (4, "query-value")
        assert setup.weights == {"float": "fp32", "bfloat16": "bf16"}[width]
        assert work.trainable_parameters == 1024
        assert work.gradient_bytes == 1024 * setup.stored_bytes(work.precision)
    wide, narrow = jobs["float"], jobs["bfloat16"]
    assert wide is not None
    assert narrow is not None
    assert wide.parameter_bytes == 2 * narrow.parameter_bytes == 4 * wide.parameters


@pytest.mark.parametrize("end", ["raises", "is interrupted", "lacks memory"])
def test_a_rehearsal_that_ended_early_is_not_told_to_rehearse(folder: Path, end: str) -> None:
    """Nor to look into any file but the script's own."""
    ended = {
        "raises": "torch.zeros(2).cuda() @ torch.zeros(3).cuda()",
        "is interrupted": "os.kill(os.getppid(), signal.SIGINT); time.sleep(30)",
        "lacks memory": "raise MemoryError",
    }
    script = folder / "train.py"
    script.write_text(
        "import os, signal, time\nimport torch\n\n\ndef train():\n"
        f"    torch.nn.Linear(2, 2).cuda()\n    {ended[end]}\n\n\ntrain()\n"
    )
    found = seen(str(script))
    assert found.rehearsal is not None
    told = recording_problem(found)
    with pytest.raises(RunError) as refused:
        job_from_recording(found)
    texts = [refused.value.hint, *(told or ())]
    assert not any("--rehearse" in text for text in texts)
    if end != "is interrupted":
        assert told is not None
        assert "(train.py:7)" in told[0]
        assert told[1].startswith("fix train.py:7: ")


@pytest.mark.parametrize("when", ["always", "never"])
def test_an_environments_time_is_in_every_figure(when: str) -> None:
    """Of a round of acting, by the updates that learn from it; recorded and rehearsed alike."""
    found = seen("plays.py", when=when)
    if when == "always":
        check("plays.py", found)
    job = job_from_recording(found, total_steps=250)
    assert job.facts()["environment_s"] == job.feed.wait_s > 0
    assert any("the environment takes" in one for one in job.assumptions)
    none = replace(job, feed=Feed())
    on = [api.estimate(one, on="g6.xlarge").step_time_s.value for one in (job, none)]
    took_s = on[0] - on[1]
    assert 0.2 * job.feed.wait_s < took_s < 5 * job.feed.wait_s


@pytest.mark.frameworks
@pytest.mark.parametrize("has_weights", [True, False])
def test_a_pretrained_model_is_made_by_its_configuration(folder: Path, has_weights: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=1000, tie_word_embeddings=True, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    kept = transformers.LlamaForCausalLM(config).bfloat16() if has_weights else config
    kept.save_pretrained(folder / "model")
    check("pretrained.py", seen("pretrained.py", str(folder / "model")))
