"""A SkyPilot task as a submission: its machines, and what its ``envs`` say of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from advisor.catalogue import Catalogue, GpuFilter, OfferFilter, Pricing
from advisor.errors import AdvisorError, UsageError
from advisor.gate.judged import Asked, AskedMachines, Submission, Unclear
from advisor.gate.said import from_environment, with_job

_LARGEST: Final = 1_000_000  # characters of a task that is read
_MOST_NODES: Final = 4096
_MOST_OPTIONS: Final = 200
# SkyPilot's bare names are the smaller card where two memories are sold; it writes the larger one.
_SMALLER: Final = {"A100": 40.0, "V100": 16.0}
_MEMORY: Final = re.compile(r"-\d+GB$", re.IGNORECASE)


def read_task(text: str, catalogue: Catalogue, path: Path | None = None) -> Submission:
    """Return the submission that a task's YAML is.

    Raises UsageError if the text is no task, or a value in it makes no sense.

    Parameters
    ----------
    text : str
        One document. Resources may be a choice: ``any_of``, ``ordered``, several accelerators.
    catalogue : Catalogue
        Where the machine is looked up that a task leaves open: SkyPilot takes the cheapest.
    path : Path, optional
        Where the task lies, beside the recipe that it starts; without, no file is read.
    """
    task = _task(text)
    envs = task.get("envs") or {}
    if not isinstance(envs, dict):
        raise UsageError("cannot read envs of the task as a table", hint="write NAME: value")
    nodes = task.get("num_nodes")
    nodes = 1 if nodes is None else nodes
    if not isinstance(nodes, int) or not 1 <= nodes <= _MOST_NODES:
        raise UsageError(
            f"num_nodes {str(nodes)[:20]!r} is out of range", hint=f"give 1 to {_MOST_NODES}"
        )
    options = list(_options(task.get("resources") or {}))[:_MOST_OPTIONS]
    asked = tuple(_asked(one, nodes, catalogue) for one in options)
    said = from_environment(envs)
    return Submission(asked=asked, said=said if path is None else with_job(said, text, path))


def _task(text: str) -> dict[str, Any]:
    import yaml

    if len(text) > _LARGEST:
        raise UsageError(f"a task of {len(text):,} characters", hint="give one SkyPilot task")
    try:
        documents = [one for one in yaml.safe_load_all(text) if one]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = str(error).partition("\n")[0]
        raise UsageError(f"cannot read the task: {line}", hint="give a SkyPilot YAML") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UsageError(
            f"not one SkyPilot task, but {len(documents)} documents",
            hint="give the tasks of a pipeline one by one",
        )
    return documents[0]


def _options(resources: Any) -> Iterator[dict[str, Any]]:
    """Yield every choice that resources leave, each with one accelerator at most."""
    if not isinstance(resources, dict):
        raise UsageError(
            "cannot read resources of the task as a table", hint="see SkyPilot's YAML"
        )
    base = {name: value for name, value in resources.items() if name not in ("any_of", "ordered")}
    choices = resources.get("any_of") or resources.get("ordered") or [{}]
    for choice in choices if isinstance(choices, list) else [choices]:
        if not isinstance(choice, dict):
            raise UsageError("cannot read any_of of the task as tables", hint="write - infra: aws")
        option = base | choice
        for accelerator in _accelerators(option.get("accelerators")):
            yield option | {"accelerators": accelerator}


def _accelerators(given: Any) -> list[tuple[str, float] | None]:
    """Return each accelerator that is named, with how many of it a machine has."""
    if not given:
        return [None]
    if isinstance(given, dict):
        return [(str(name), _number(count)) for name, count in given.items()]
    found: list[tuple[str, float] | None] = []
    for one in given if isinstance(given, list) else [given]:
        name, _, count = str(one).partition(":")
        found.append((name.strip(), _number(count or 1)))
    return found


def _number(count: Any) -> float:
    try:
        number = float(1 if count is None else count)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= _MOST_NODES:
        raise UsageError(
            f"a number of accelerators of {str(count)[:20]!r} is out of range",
            hint="write e.g. A100:8",
        )
    return number


def _asked(option: Mapping[str, Any], nodes: int, catalogue: Catalogue) -> Asked:
    provider, region = _place(option)
    pricing: Literal["spot", "on-demand"] = "spot" if option.get("use_spot") else "on-demand"
    name, accelerator = option.get("instance_type"), option["accelerators"]
    if name is not None:
        return AskedMachines(
            instance_type=str(name), count=nodes, provider=provider, region=region,
            completion=pricing,
        )  # fmt: skip
    if accelerator is None:
        label = f"{nodes} machines of any type"
        return Unclear(label=label, why="names neither a machine type nor an accelerator")
    words = f"{nodes} x {accelerator[0]}:{accelerator[1]:g}"
    found = _cheapest(accelerator, provider, region, pricing, catalogue)
    if isinstance(found, str):
        return Unclear(label=words, why=found)
    owner, cheapest = found
    return AskedMachines(
        instance_type=cheapest, count=nodes, provider=owner, region=region, completion=pricing,
        note=f"{words} is judged on {owner} {cheapest}, the cheapest that has it",
    )  # fmt: skip


def _place(option: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return provider and region, of ``infra: aws/us-east-1/...`` or of their own fields."""
    parts = [part for part in str(option.get("infra") or "").split("/") if part and part != "*"]
    provider = str(option.get("cloud") or (parts[0] if parts else "")).lower() or None
    region = str(option.get("region") or (parts[1] if len(parts) > 1 else "")) or None
    return provider, region


def _cheapest(
    accelerator: tuple[str, float], provider: str | None, region: str | None, pricing: Pricing,
    catalogue: Catalogue,
) -> tuple[str, str] | str:  # fmt: skip
    """Return provider and name of the cheapest machine with it; in words where there is none."""
    name, count = accelerator
    family = _MEMORY.sub("", name)
    most_gb = _SMALLER.get(name.upper(), float("inf"))
    least_gb = float(name.rpartition("-")[2][:-2]) if family != name else 0.0
    try:
        offers = catalogue.select(
            OfferFilter(
                providers=(provider,) if provider else (), regions=(region,) if region else (),
                gpus=GpuFilter(
                    names=(family,), min_count=count, max_count=count,
                    min_memory_gb=least_gb, max_memory_gb=max(least_gb, most_gb),
                ),
                pricing=(pricing,),
            )
        )  # fmt: skip
    except AdvisorError as error:
        return str(error)
    if not len(offers.type_index):
        where = " ".join(x for x in (provider, region) if x) or "any provider"
        return f"no machine with {count:g} x {name} has a {pricing} price at {where}"
    found = catalogue.types.at(int(offers.type_index[0]))
    return str(found.provider), str(found.name)
