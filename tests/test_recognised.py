"""Recorded transformers are recognised, and what their layouts rest on is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_models import transformer

from advisor import api
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.jobs.load import read_job, write_job
from advisor.jobs.model_facts import recognised, recorded_heads
from advisor.planners.step.model_units import TransformerBlocks, transformer_blocks, work_units

MakeJob = Callable[..., Job]


def _recorded(make_job: MakeJob, *, heads: int | None) -> Job:
    return replace(make_job(), work=transformer(), heads=heads)


def test_heads_that_are_known_bound_tensor_parallelism(make_job: MakeJob) -> None:
    for known, widest in ((None, 512 // 64), (16, 16), (4, 4)):
        job = recognised(_recorded(make_job, heads=known))
        assert job.work is not None
        blocks = transformer_blocks(job.work, work_units(job.work), heads=job.heads)
        assert isinstance(blocks, TransformerBlocks)
        assert blocks.widest_tp == widest
        (note,) = [one for one in job.assumptions if one.startswith("recognised")]
        said = f"{known} heads as recorded" if known else "heads of 64 columns assumed (--heads)"
        assert note == f"recognised as a transformer of 6 blocks, 512 columns wide, {said}"


def test_given_heads_replace_the_recorded_ones_and_the_note(make_job: MakeJob) -> None:
    job = recognised(recognised(_recorded(make_job, heads=16)), heads=4)
    assert job.heads == 4
    assert [one for one in job.assumptions if "recognised" in one] == [
        "recognised as a transformer of 6 blocks, 512 columns wide, 4 heads (given: --heads)"
    ]
    with pytest.raises(UsageError, match="5 do not divide the model's width of 512"):
        recognised(job, heads=5)


def test_other_models_are_left_as_they_are(make_job: MakeJob) -> None:
    job = make_job()
    assert recognised(job) == job
    with pytest.raises(UsageError, match="is not a recorded transformer"):
        recognised(job, heads=4)


def test_heads_survive_a_job_file(make_job: MakeJob, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    job = recognised(_recorded(make_job, heads=16))
    write_job(job, path)
    assert read_job(path) == job


def test_a_recognised_transformer_is_divided_by_every_verb(make_job: MakeJob) -> None:
    """A model that no device of the machine holds is divided in ``predict`` and ``recommend``."""
    predictor = Predictor(learned=None)
    job = recognised(replace(make_job(), work=transformer(blocks=4, hidden=16384),
                             global_batch=8, measured=None, feed=replace(make_job().feed,
                             cpu_s_per_sample=None)))  # fmt: skip
    found = api.estimate(job, on="aws:p4d.24xlarge", predictor=predictor)
    assert found.layout.tp > 1 or found.layout.pp > 1 or found.layout.zero_stage == 3
    ranked = api.recommend(job, gpus="A100:8", cloud="aws", max_nodes=1, tp=8, predictor=predictor)
    assert [c.layout.tp for c in ranked.front] == [8] * len(ranked.front)
    assert ranked.front
    assert any("recognised as a transformer" in one for one in ranked.job["assumptions"])


def test_heads_are_read_from_a_real_step(tmp_path: Path) -> None:
    import torch
    from collecting import hooked

    class Attention(torch.nn.Module):
        def __init__(self, heads: int) -> None:
            super().__init__()
            self.heads, self.qkv = heads, torch.nn.Linear(96, 3 * 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.qkv(x).chunk(3, dim=-1)
            q, k, v = (p.view(*p.shape[:2], self.heads, -1).transpose(1, 2) for p in parts)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    for heads in (6, 12):
        (folder := tmp_path / str(heads)).mkdir()
        model = Attention(heads)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with hooked(folder) as hooks:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, 5, 96)).sum().backward()
                optimizer.step()
            rows = hooks.deep()["operators"]
        traced = {name: tuple(row[name] for row in rows) for name in rows[0]}
        assert recorded_heads(traced) == heads
    assert recorded_heads({}) is None
