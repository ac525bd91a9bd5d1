"""Every format becomes records, and a bad row is refused with file, row and column."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from advisor import data
from advisor.errors import RunError, UsageError
from advisor.records import formats, read_records, write_records
from advisor.records.tracked import gauge, grid, rate

SHARED = data.shared()

SCOUT = (
    "workload_dir,n_nodes,instance_type,completed,datasize,elapsed_time,framework,input_size,"
    "workload"
)
IBM = (
    "provider,A_family,A_vcpu,B_family,B_vcpu,C_family,C_type,C_vcpu,nodes,workload,target_cost,"
    "target_runtime,status"
)
TRIM = (
    "n_workers,learning_rate,batch_size,synchronism,training_time,n_ps,vm_flavor,"
    "training_set_size,total_iterations"
)
COAST = (
    "model_name,method,gpu_model,number_nodes,number_gpus,tokens_per_sample,batch_size,"
    "dataset_tokens_per_second,train_runtime,is_valid"
)
POWER = (
    "model_name,batch_size,dtype,sequence_length,tokens_per_second_mean,gpu_utilization_mean,"
    "memory_used_mb_mean,power_draw_watts_mean"
)


def written(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_scout_keeps_failures_and_prices_runs(tmp_path: Path) -> None:
    prices = (
        "instance_type,usd_per_hour,vcpu,memory,network,source_file\nc4.large,0.1,2,3.75 GiB,,x"
    )
    written(tmp_path / "prices" / "aws_us_east_1_ondemand.csv", prices)
    file = written(
        tmp_path / "scout" / "runs.csv",
        SCOUT,
        "join_huge,4,c4.large,True,huge,3600,spark,1000,join",
        "join_huge,8,c4.large,False,huge,7200,spark,-1,join",
    )
    good, failed = formats.read_runs_as("scout", file)
    assert (good.status, good.time_s) == ("ok", 3600.0)
    assert good.cost_usd == pytest.approx(0.4)
    assert good.job.facts["input_bytes"] == 1000.0
    assert good.configuration[0].memory_gib == 3.75
    assert failed.status == "failed"
    assert "input_bytes" not in failed.job.facts  # -1 stands for unknown


def test_ibm_recovers_the_price_and_keeps_timeouts_as_bounds(tmp_path: Path) -> None:
    file = written(
        tmp_path / "multi-cloud-configuration.csv",
        IBM,
        "A,1.0,0.0,,,,,,2,buzz-kmeans,0.2,360,ok",
        "A,1.0,0.0,,,,,,2,buzz-kmeans,0.2,360,ok",
        "A,1.0,0.0,,,,,,3,buzz-kmeans,,600,Timed out.",
        "A,1.0,0.0,,,,,,3,buzz-kmeans,,,broken",
    )
    first, second, cut, broken = formats.read_runs_as("ibm", file)
    assert first.configuration[0].price_usd_per_h == pytest.approx(1.0)
    assert [first.replicate, second.replicate] == [0, 1]
    assert (cut.status, cut.time_s) == ("censored", 600.0)
    assert (broken.status, broken.time_s) == ("failed", None)
    assert {r.job.family for r in (first, cut)} == {"kmeans"}


def test_trimtuner_anchors_the_full_run_on_the_partial_one(tmp_path: Path) -> None:
    file = written(
        tmp_path / "cnn.csv",
        "\ufeff" + TRIM,
        "8,0.1,16,async,4,1,t2.small,1000,15",
        "8,0.1,16,async,200,1,t2.small,60000,900",
        "8,0.1,16,sync,601,1,t2.small,60000,900",
    )
    partial, full, cut = formats.read_runs_as("trimtuner", file)
    assert partial.anchor is None
    assert full.anchor is not None
    assert full.anchor.time_s == pytest.approx(4 * 60)
    assert (cut.status, cut.anchor) == ("censored", None)


def test_coastline_and_gpu_power(tmp_path: Path) -> None:
    coast = written(
        tmp_path / "run_database.csv", COAST, "g-2b,full,A100,2,8,4096,4,5000.5,126.2,1.0"
    )
    (run,) = formats.read_runs_as("coastline", coast)
    assert (run.instances, run.configuration[0].accelerators) == (2, 4)
    power = written(
        tmp_path / "mfu_aggregated_per_config_L4.csv",
        POWER,
        "Q,2,bf16,11,44,50,1000,60",
        "Q,0,bf16,11,0,0,0,60",
    )
    ran, idle = formats.read_runs_as("gpu-power", power)
    assert ran.time_s == pytest.approx(0.5)
    assert idle.status == "failed"


def test_trainpred_joins_the_anchor_of_the_same_job(tmp_path: Path) -> None:
    from advisor.lab.data import public_runs

    header = ",".join(public_runs._TRAINPRED_COLUMNS)
    statistics = ",".join("50" for _ in public_runs._TRAINPRED_COLUMNS[6:])
    file = written(
        tmp_path / public_runs.TRAINPRED_FILE,
        header,
        f"g5,AlexNet,16,32,5000,10,{statistics}",
        f"p3,AlexNet,16,32,5000,20,{statistics}",
        f"p3,LeNet,16,32,5000,20,{statistics}",
    )
    anchor, target, alone = formats.read_runs_as("trainpred", file)
    assert target.anchor is not None
    assert target.anchor.time_s == anchor.time_s == 10.0
    assert target.anchor.facts["gpu_fraction_mean"] == 0.5
    assert target.configuration[0].accelerator == "V100-SXM2-16GB"
    assert alone.anchor is None


def test_profet_turns_microseconds_of_two_steps_into_seconds_of_one(tmp_path: Path) -> None:
    row = {
        "Device_Conv2D": 4e6, "Device_Relu": 2e6, "Device_IDLE": 1e6, "exp_name": "exp02",
        "instance_name": "g4dn.xlarge", "dataset": "32dataset", "model": "VGG", "batchsize": 16,
        "batch_latency": 3.5, "target_us__p3.2xlarge": 1e6,
    }  # fmt: skip
    pd.DataFrame([row]).to_parquet(tmp_path / "anchor_g4.parquet")
    (run,) = formats.read_runs_as("profet", tmp_path)
    assert run.time_s == 1.0
    assert run.anchor is not None
    assert run.anchor.facts["operator_convolution_forward_s"] == 2.0
    assert run.anchor.facts["operator_activation_s"] == 1.0
    assert (run.replicate, run.job.facts["image_pixels"]) == (1, 32.0)


def test_hivemind_keeps_the_first_minute_only(tmp_path: Path) -> None:
    from advisor.lab.data import public_runs

    written(
        tmp_path / "experiments.csv",
        ",".join(public_runs._EXPERIMENT),
        "e1,2,gc-t4x2,90,100,4096,resnet18,notebook,US + EU T4",
        "e2,1,8xV100x1,50,,,resnet18,filename,",
        "e3,2,gc-t4x2,90,,4096,resnet18,notebook,",
    )
    written(
        tmp_path / "nodes.csv",
        ",".join(public_runs._NODE),
        "0,e1,gc-t4,32,8,31000",
        "1,e1,gc-t4,32,8,31000",
    )
    t_s = np.arange(10.0, 110.0)
    steps = [
        {"node_id": n, "_runtime": t, "step": i, "step_time_s": 1.0, "global_epoch": 0.0}
        for n in (0, 1)
        for i, t in enumerate(t_s)
    ]
    system = [
        {"node_id": n, "_runtime": t, **dict.fromkeys(public_runs._SYSTEM[2:], 8.0)}
        for n in (0, 1)
        for t in t_s
    ]
    pd.DataFrame(steps).to_parquet(tmp_path / "train_steps.parquet")
    pd.DataFrame(system).to_parquet(tmp_path / "system_series.parquet")
    two, one = formats.read_runs_as("hivemind", tmp_path)
    assert (two.time_s, one.time_s) == (1e6 / 100, 1e6 / 50)
    assert two.layout["regions"] == 2.0
    nodes = public_runs.read_nodes(tmp_path)["e1"]
    assert nodes[0].step_t_s.max() == 60.0
    assert nodes[0].sent_bytes_per_s.tolist() == [1e6] * 61
    assert two.series[0].channels["network_sent_bytes_per_s"][0] == pytest.approx(1e6)


def test_a_trainer_that_ended_is_read_and_one_that_did_not_is_refused(tmp_path: Path) -> None:
    state = {
        "global_step": 40, "train_batch_size": 8, "num_train_epochs": 2,
        "log_history": [{"loss": 1.0, "step": 10}, {"train_runtime": 61.5, "step": 40}],
    }  # fmt: skip
    written(
        tmp_path / "run" / "checkpoint-20" / "trainer_state.json", json.dumps({"global_step": 20})
    )
    written(tmp_path / "run" / "checkpoint-40" / "trainer_state.json", json.dumps(state))
    written(tmp_path / "run" / "all_results.json", json.dumps({"train_samples_per_second": 5.2}))
    (run,) = formats.read_runs_as("huggingface", tmp_path)
    assert (run.time_s, run.job.facts["batch"], run.facts["samples_per_s"]) == (61.5, 8.0, 5.2)
    written(tmp_path / "other" / "trainer_state.json", json.dumps({"log_history": []}))
    with pytest.raises(RunError, match="train_runtime: missing"):
        formats.read_runs_as("huggingface", tmp_path / "other")


def test_wandb_counters_become_rates(tmp_path: Path) -> None:
    folder = tmp_path / "run-1" / "files"
    written(folder / "wandb-summary.json", json.dumps({"_runtime": 40}))
    about = {"cpu_count": 4, "gpu": "A10G", "gpu_count": 1, "program": "train.py",
             "memory": {"total": 16 * 2**30}}  # fmt: skip
    written(folder / "wandb-metadata.json", json.dumps(about))
    written(folder / "config.json", json.dumps({"batch_size": {"value": 32}}))
    events = [{"_runtime": 10.0 * i, "system.cpu": 50.0, "system.network.recv": 1e4 * i,
               "system.proc.memory.rssMB": 100.0} for i in range(1, 5)]  # fmt: skip
    written(folder / "wandb-events.jsonl", *(json.dumps(e) for e in events))
    (run,) = formats.read_runs_as("wandb", tmp_path)
    assert run.configuration[0].memory_gib == 16.0
    assert run.configuration[0].accelerator == "A10G"
    channels = run.series[0].channels
    assert channels["cpu_cores"] == (2.0, 2.0, 2.0, 2.0)
    assert channels["network_received_bytes_per_s"][1:] == (1000.0, 1000.0, 1000.0)
    assert (run.job.family, run.job.facts["batch"]) == ("train", 32.0)


BAD: list[tuple[str, str, str, str, str]] = [
    ("scout", "runs.csv", SCOUT, "join,4,c4.large,True,huge,soon,spark,1,join", "elapsed_time"),
    ("scout", "runs.csv", SCOUT, "join,4,c4.large,perhaps,huge,10,spark,1,join", "completed"),
    ("scout", "runs.csv", SCOUT, "join,0,c4.large,True,huge,10,spark,1,join", "n_nodes"),
    ("scout", "runs.csv", SCOUT, "join,4,,True,huge,10,spark,1,join", "instance_type"),
    ("scout", "runs.csv", SCOUT, "join,4,c4.large,True,huge,inf,spark,1,join", "elapsed_time"),
    ("ibm", "multi-cloud-configuration.csv", IBM, "A,1,0,,,,,,2.5,b-k,0.2,360,ok", "nodes"),
    ("ibm", "multi-cloud-configuration.csv", IBM, "A,1,0,,,,,,2,b-k,-1,360,ok", "target_cost"),
    ("coastline", "run_database.csv", COAST, "g,full,A100,3,8,4096,4,5,126,1", "number_gpus"),
    ("trimtuner", "cnn.csv", TRIM, "8,0.1,16,async,nan,1,t2.small,1000,15", "training_time"),
]


@pytest.mark.parametrize(("name", "file", "header", "row", "column"), BAD)
def test_a_bad_row_is_refused_with_file_row_and_column(
    tmp_path: Path, name: str, file: str, header: str, row: str, column: str
) -> None:
    path = written(tmp_path / file, header, row)
    with pytest.raises(RunError, match=rf"{file}: row 1: {column}"):
        formats.read_runs_as(name, path)


@pytest.mark.parametrize("name", ["scout", "ibm", "coastline", "trainpred"])
def test_a_table_without_its_columns_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "x.csv", "a,b", "1,2")
    with pytest.raises(RunError, match="no column"):
        formats.read_runs_as(name, path)


@pytest.mark.parametrize("name", [n for n in formats.FORMATS if n not in ("records",)])
def test_an_empty_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError):
        formats.read_runs_as(name, tmp_path)


def test_an_unknown_format_or_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no format named 'excel'"):
        formats.read_runs_as("excel", tmp_path)
    with pytest.raises(UsageError, match="there is no"):
        formats.read_runs_as("scout", tmp_path / "nowhere")


def test_our_own_dataset_is_read_whole() -> None:
    records = formats.read_runs_as("minicloud", data.root("datasets") / "runs")
    assert len(records) > 100
    readings = [r.anchor.series[0].readings if r.anchor else 0 for r in records]
    # While others held both cores the sampler outside did not get to a reading of some short runs.
    assert sum(n > 1 for n in readings) >= 0.8 * len(readings)
    assert all(r.anchor is not None for r in records)
    assert len({r.record_id for r in records}) == len(records)


def test_a_changed_row_of_our_own_dataset_is_refused(tmp_path: Path) -> None:
    import gzip

    packed = data.root("datasets") / "runs" / "runs.jsonl.gz"
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines(keepends=True)
    lines[3] = lines[3].replace('"batch":', '"botch":', 1)
    (tmp_path / "runs.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    with pytest.raises(RunError, match=r"runs\.jsonl\.gz:4"):
        formats.read_runs_as("minicloud", tmp_path)


def test_collected_runs_cost_what_the_prices_beside_them_say(tmp_path: Path) -> None:
    folder = data.root("datasets") / "runs"
    packed = tmp_path / "runs.jsonl.gz"
    shutil.copy(folder / "runs.jsonl.gz", packed)
    by_row = {r.record_id: r for r in formats.read_runs_as("minicloud", tmp_path)}
    prices = {"shapes": {"0.5 cores, 0 Mbit/s": {"usd_per_h": 7.0, "source": "a machine"}}}
    (tmp_path / "prices.json").write_text(json.dumps(prices))
    for run in formats.read_runs_as("minicloud", tmp_path):
        before = by_row[run.record_id]
        machine = run.configuration[0]
        if machine.vcpus == 0.5 and not machine.network_gbit_per_s:
            assert run.price_usd_per_h == 7.0
            if run.time_s is not None:
                assert run.cost_usd == pytest.approx(7.0 * run.time_s / 3600.0)
        else:
            assert run == before
    (tmp_path / "prices.json").write_text("{}")
    with pytest.raises(RunError, match="prices"):
        formats.read_runs_as("minicloud", tmp_path)


def test_a_rate_keeps_the_total_of_its_counter() -> None:
    rng = np.random.default_rng(0)
    t_s = np.cumsum(rng.uniform(0.5, 1.5, 50))
    counter = np.cumsum(rng.uniform(0, 9, 50))
    ticks = grid(float(t_s[-1]), 0.25) + float(t_s[0])
    inside = ticks <= t_s[-1]
    total = rate(t_s, counter, ticks[inside]).sum() * 0.25
    last = np.interp(ticks[inside][-1], t_s, counter - counter[0])
    assert total == pytest.approx(last)


def test_a_counter_that_was_reset_does_not_go_backwards() -> None:
    found = rate([0, 1, 2, 3], [0, 10, 0, 10], np.array([1.0, 2.0, 3.0]))
    assert found.tolist() == [10.0, 0.0, 10.0]


def test_readings_in_any_order_and_unknown_ones_are_harmless() -> None:
    found = gauge([2, 0, 1, 3], [20, 0, np.nan, 30], np.array([1.0, 2.0]))
    assert found.tolist() == [10.0, 20.0]


@pytest.mark.skipif(SHARED is None, reason="the public collections are not here")
@pytest.mark.parametrize(
    ("name", "folder", "statuses"),
    [
        ("scout", "scout-multinode", {"ok", "failed"}),
        ("ibm", "ibm-multi-cloud", {"ok", "failed", "censored"}),
        ("trimtuner", "trimtuner-tf-t2", {"ok", "censored"}),
        ("coastline", "coastline-run-database", {"ok"}),
        ("gpu-power", "gpu-power-benchmark", {"ok", "failed"}),
        ("trainpred", "cloud-hw-trainpred", {"ok"}),
    ],
)
def test_a_public_collection_survives_import_and_file(
    tmp_path: Path, name: str, folder: str, statuses: set[str]
) -> None:
    assert SHARED is not None
    records = formats.read_runs_as(name, SHARED / "data" / "cloud_runs" / folder)
    assert {r.status for r in records} == statuses
    write_records(tmp_path / "runs.jsonl.gz", records[:200])
    assert read_records(tmp_path / "runs.jsonl.gz") == records[:200]
