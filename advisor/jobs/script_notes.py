"""Notes on what a recorded script needs for the machines of an answer: once, not on every row."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.jobs.job import Job

# Statistics of fewer samples than these are noise to batch normalisation: ResNet-50's error on
# ImageNet is 23.6 % at 32 images a device, 24.8 % at 8, 27.3 % at 4 and 34.7 % at 2
# (Wu and He, Group Normalization, 2018, table 2).
_FEWEST_SAMPLES = 8


def script_notes(job: Job, placed: Iterable[tuple[bool, int]]) -> tuple[str, ...]:
    """Return what to change in the script, and what spreading its batch does.

    ``placed``: of every candidate shown: whether it has accelerators, and its devices.
    """
    rows = list(placed)
    notes = []
    told = job.told
    if told is not None and told.change and any(is_accelerated for is_accelerated, _ in rows):
        notes.append(f"on accelerators the script needs a change ({told.reason}): {told.change}")
    most = max((devices for _, devices in rows), default=1)
    if job.told is not None and most > 1 and not job.told.spreads:
        notes.append(
            "rows of several devices need DDP or FSDP in the script, and none was seen "
            "(advisor plan prints the lines to add)"
        )
    if job.work is not None and most > 1:
        notes += _spread(job, most)
    return tuple(notes)


def _spread(job: Job, devices: int) -> list[str]:
    """Return what few samples a device do to the model and to the devices."""
    each = job.global_batch / devices
    if job.work is None or each >= _FEWEST_SAMPLES or job.told is None:
        return []
    kinds = {layer.kind for layer in job.work.layers}
    samples = f"on {devices} devices each sees {each:.3g} of the {job.global_batch} samples a step"
    if any(kind.startswith("BatchNorm") for kind in kinds):
        return [
            f"{samples}: batch normalisation over so few changes what is learned "
            "(torch.nn.SyncBatchNorm, or a larger --batch)"
        ]
    return [f"{samples}; a larger --batch uses them better, with its learning rate tuned again"]
