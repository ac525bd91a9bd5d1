"""The user's own device sheet: measured here, kept, and used in place of the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor import api
from advisor.collectors.format.recording import Host, sheet_of
from advisor.collectors.watch import benchmark, device_sheet
from advisor.jobs.job import Job
from advisor.machines import devices
from advisor.machines.devices import host_device, processor
from advisor.planners.core import Operators
from advisor.planners.step.device import step_time

SHEET: dict[str, Any] = {
    "device": "cpu", "name": "AMD EPYC", "fp32_flop_per_s": 1.8e11, "tf32_flop_per_s": None,
    "bf16_flop_per_s": 3.6e11, "fp16_flop_per_s": None, "fp8_flop_per_s": None,
    "copy_bytes_per_s": 3e10, "call_s": 7e-6, "threads": (1, 2),
    "flop_per_s_by_threads": (1e11, 1.8e11), "bytes_per_s_by_threads": (2e10, 3e10),
    "step_s_by_threads": (2e-3, 1.2e-3), "torch_version": "2.13",
    "measured_at": "2026-11-21T00:00:00+00:00",
}  # fmt: skip
GPU_SHEET = SHEET | {
    "device": "cuda", "name": "NVIDIA L4", "fp32_flop_per_s": 1.2e13, "fp16_flop_per_s": 5e13,
    "copy_bytes_per_s": 2.5e11, "threads": (), "flop_per_s_by_threads": (),
    "bytes_per_s_by_threads": (), "step_s_by_threads": (),
}  # fmt: skip


@pytest.fixture
def host(make_job: Callable[..., Job]) -> Host:
    measured = make_job().measured
    assert measured is not None
    return measured.host


def test_a_measured_sheet_stands_in_place_of_the_table(host: Host) -> None:
    plain, sheet = processor(host, 2), processor(replace(host, sheets=(SHEET,)), 2)
    assert sheet.sustained_fp32_flop_per_s == 1.8e11 != plain.sustained_fp32_flop_per_s
    assert sheet.memory_bytes_per_s == 3e10
    assert sheet.call_s == 7e-6
    one = processor(replace(host, sheets=(SHEET,)), 1)
    assert one.sustained_fp32_flop_per_s == 1e11
    assert one.memory_bytes_per_s == 2e10


def test_measured_launch_cost_enters_the_step(host: Host, make_job: Callable[..., Job]) -> None:
    """A step that is bound by its calls takes as long as the calls do."""
    work = make_job().work
    assert work is not None
    small = replace(
        work, operators=Operators.of(replace(o, flop=0.0, bytes=0.0, fixed_bytes=0.0)
                                     for o in work.operators),
    )  # fmt: skip
    device = processor(replace(host, sheets=(SHEET,)), 1)
    found = step_time(small, [device], [work.micro_batch], devices.device_parameters())
    calls = sum(o.count for o in work.operators if o.phase != "optimizer")
    assert found.micro_batch_s[0, 0] == pytest.approx(calls * 7e-6)


def test_a_job_that_ran_on_a_gpu_is_anchored_on_the_gpu(host: Host) -> None:
    named = replace(host, gpus=("NVIDIA L4",))
    plain = host_device(named, None, "cuda")
    assert plain == devices.accelerator_devices()["L4"]
    measured = host_device(replace(named, sheets=(SHEET, GPU_SHEET)), None, "cuda:0")
    assert plain is not None
    assert measured is not None
    assert measured.sustained_fp16_flop_per_s == 5e13
    assert measured.fp16_flop_per_s == plain.fp16_flop_per_s
    assert measured.memory_bytes_per_s == pytest.approx(2.5e11 / 0.856)
    assert host_device(replace(host, gpus=("NVIDIA Abacus",)), None, "cuda") is None


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), ("Tesla T4", "T4"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"), ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"), ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"), ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"), ("NVIDIA GeForce RTX 3090", "RTX-3090"),
    ],
)  # fmt: skip
def test_drivers_names_are_understood(driver: str, device: str) -> None:
    found = devices.suite_device(driver)
    assert found is not None
    assert found.name == device


def test_a_sheet_survives_the_way_to_disk_and_back() -> None:
    record = json.loads(json.dumps(SHEET))
    assert sheet_of(record) == SHEET


def test_a_sheet_that_cannot_be_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert benchmark.cached_sheets() == ()
    path = benchmark.sheet_path()
    path.parent.mkdir(parents=True)
    for content in ("{", "[{}]", '[{"device": "cpu", "colour": 1}]'):
        path.write_text(content)
        assert benchmark.cached_sheets() == ()


def test_the_processor_is_measured_with_every_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small and short, but the real kernels: rates are positive and the sheet is whole."""
    pytest.importorskip("torch")
    monkeypatch.setattr(device_sheet, "_SIDE", {"cpu": 128})
    monkeypatch.setattr(device_sheet, "_SHEET_COPY_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(device_sheet, "_ROUND_S", 0.001)
    monkeypatch.setattr(device_sheet, "_ROUNDS", 1)
    (sheet,) = (s for s in device_sheet.measured_devices() if s["device"] == "cpu")
    assert sheet["threads"][0] == 1
    assert list(sheet["threads"]) == sorted(set(sheet["threads"]))
    rates: list[Any] = [sheet["fp32_flop_per_s"], sheet["copy_bytes_per_s"], sheet["call_s"]]
    for series in (sheet["flop_per_s_by_threads"], sheet["bytes_per_s_by_threads"],
                   sheet["step_s_by_threads"]):  # fmt: skip
        assert len(series) == len(sheet["threads"])
        rates += series
    assert np.all(np.array(rates) > 0)
    assert sheet["tf32_flop_per_s"] is sheet["fp8_flop_per_s"] is None
    assert len(device_sheet.sheet_lines(sheet)) == 3 + len(sheet["threads"])


def test_this_machine_can_be_asked_for(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = benchmark.sheet_path()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([SHEET]))
    assert host.benchmark is not None
    (path.parent / path.name.replace("sheets-v1", "host")).write_text(
        json.dumps(asdict(host.benchmark))
    )
    job = api.find_job(layers=2, hidden=128, heads=2, sequence=64, precision="fp32")
    found = api.estimate(job, on="here")
    assert found.configuration.parts[0][0].region == "this machine"
    assert any("--device-sheet" in fact.note for fact in found.sources)
