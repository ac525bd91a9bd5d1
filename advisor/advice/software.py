"""How the model's arithmetic is done: precision, compilation, the optimizer's kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from advisor.advice.facts import Facts
from advisor.advice.record import Advice, How
from advisor.jobs.loading import job_of
from advisor.question import JobSpec, SetupRequest

_SOURCE: Final = "software"
_MODEL: Final = "the device model, with the recorded operators"
_AUTOCAST: Final = 'with torch.autocast(device_type="cuda", dtype=torch.bfloat16):'


def advise(facts: Facts) -> Iterable[Advice]:
    """Return what other kernels would save."""
    return (one for one in _cures(facts) if one is not None)


def _cures(facts: Facts) -> Iterator[Advice | None]:
    job = facts.job
    if job.work is None:
        return
    if job.work.precision == "fp32" and facts.has_accelerators:
        yield facts.priced(
            job_of(JobSpec(precision="bf16"), job=job),
            name="mixed-precision",
            source=_SOURCE,
            change="Compute products in bf16; weights and optimizer stay in fp32.",
            rests_on=_MODEL,
            condition="Watch the loss: some models need fp32 in a layer or two.",
            how=How(kind="lines", text=f"{_AUTOCAST}\n    loss = ...  # forward pass and loss"),
            is_model_kept=False,
        )
    if job.work.setup.kernels == "eager" and job.work.transformer is not None:
        yield facts.priced(
            job_of(JobSpec(), SetupRequest(kernels="compiled"), job=job),
            name="compile",
            source=_SOURCE,
            change="Compile the model, so that elementwise operators run as one kernel.",
            rests_on=_MODEL,
            condition="The first steps take minutes more; shapes that change compile anew.",
            how=How(kind="lines", text="model = torch.compile(model)"),
        )
