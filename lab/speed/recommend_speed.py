"""CPU time of the whole ``recommend`` over the whole catalogue, once everything is loaded.

    python -m advisor.lab.speed.recommend_speed [--times 10]

A described transformer of 70 billion parameters on up to 64 machines, and a recorded convolutional
network (synthetic: ``tests/recorded_models.py``) on up to 8, pruned; of the network also what the
search of every row takes, whose front must be the same. ``--times``: over a catalogue so many
times as large too, every type sold again under other names, each a little dearer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from advisor.lab import frame

sys.path.insert(0, str(frame.ROOT / "tests"))
from conftest import laptop
from recorded_models import convolutions

from advisor.answer import Recommendation
from advisor.ask import Constraints
from advisor.catalogue import Catalogue
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.job import Feed, Job, Measured
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.rank.ranking import recommend

TRIES = 3
LLAMA_70B = Transformer(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, is_gated=True,
                        sequence=4096, vocabulary=128256)  # fmt: skip


def recorded() -> Job:
    """Return a convolutional network that was recorded on a laptop."""
    work = convolutions()
    return Job(
        name="convolutions", work=work, program=None, global_batch=256, total_steps=450_000.0,
        total_source="given", peak_rss_bytes=5 << 30, recorded_batch=work.micro_batch,
        feed=Feed(workers=8, cpu_s_per_sample=None, wait_s=0.0, sample_bytes=6e5,
                  dataset_samples=1_281_167),
        measured=Measured(step_s=0.5, log_sd=0.03, host=laptop(), threads=2, device="cpu"),
    )  # fmt: skip


def timed(tries: int, *asked: Any, **words: Any) -> tuple[float, Recommendation]:
    """Return the least CPU time of some tries of ``recommend``, and the answer."""
    least = np.inf
    for _ in range(tries):
        started = time.process_time()
        found = recommend(*asked, **words)
        least = min(least, time.process_time() - started)
    return least, found


def front(found: Recommendation) -> list[tuple[object, ...]]:
    return [
        (*((o.provider, o.instance_type, o.region, n) for o, n in c.configuration.parts),
         c.layout, c.training_time_h.value, c.cost_usd.value)
        for c in found.front
    ]  # fmt: skip


def larger(folder: Path, times: int) -> Path:
    """Return a snapshot with every type and price so many times; the k-th copies 2 % k dearer."""
    shutil.copytree(Catalogue.load().path, folder)
    for path in [*folder.glob("specifications*"), *folder.glob("networks*")]:  # keyed by name
        facts = pd.read_csv(path, dtype=str, keep_default_na=False)
        named = [
            facts.assign(instance_type=facts.instance_type + f".copy{k}") for k in range(1, times)
        ]
        pd.concat([facts, *named]).to_csv(path, index=False)
    for name in sorted(path.name for path in folder.glob("types*.csv.gz")):
        types = pd.read_csv(folder / name, dtype=str, keep_default_na=False)
        prices = pd.read_csv(folder / name.replace("types", "prices"))
        sold = [
            types.assign(instance_type=types.instance_type + f".copy{k}") for k in range(1, times)
        ]
        asked = [
            prices.assign(
                type_id=prices.type_id + k * len(types),
                on_demand_usd_per_h=(prices.on_demand_usd_per_h * (1 + 0.02 * k)).round(6),
                spot_usd_per_h=(prices.spot_usd_per_h * (1 + 0.02 * k)).round(6),
                spot_interruption_band=prices.spot_interruption_band.astype("Int64"),
            )
            for k in range(times)
        ]
        pd.concat([types, *sold]).to_csv(folder / name, index=False)
        pd.concat(asked).to_csv(folder / name.replace("types", "prices"), index=False)
    return folder


def main() -> None:
    times = frame.options(__doc__, {"--times": 1}).times
    measure(Predictor())
    if times > 1:
        with tempfile.TemporaryDirectory() as place:
            many = Catalogue.load(larger(Path(place, "snapshot"), times))
            print(f"{times} times as large: {many!r}")
            measure(Predictor(catalogue=many))


def measure(predictor: Predictor) -> None:
    """Print what the questions take with a predictor's catalogue."""
    predictor.fleet  # noqa: B018 - made on the first look
    work = transformer_work(LLAMA_70B, micro_batch=1)
    described = described_job(work, name="70b", global_batch=256, steps=20_000)
    seconds, found = timed(TRIES, described, Constraints(max_nodes=64), predictor=predictor)
    print(f"70B transformer, 64 machines: {seconds:.2f} CPU-s, {len(found.front)} on the front")
    asked = recorded(), Constraints(top=1000)
    seconds, found = timed(TRIES, *asked, predictor=predictor)
    print(f"recorded network: {seconds:.2f} CPU-s, {len(found.front)} on the front")
    slow, whole = timed(1, *asked, predictor=predictor, prunes=False)
    same = "the same" if front(whole) == front(found) else "ANOTHER"
    print(f"recorded network, every row searched: {slow:.2f} CPU-s, {same} front")


if __name__ == "__main__":
    main()
