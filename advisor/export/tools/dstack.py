"""dstack: a task pinned by backend, region and instance type, with price and time limits.

Read against dstack 0.22 and gpuhunt 0.1.34, whose names of machines ``instance_types`` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.answer import Offer
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, is_rented_from
from advisor.export.templates import documents
from advisor.export.texts import attached, exchangeable, is_in_one_region, yaml_text

_DEFAULT_IMAGE: Final = "dstackai/base"
_FILE: Final = "task.dstack.yml"


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the task; a run that spot machines are taken from is started again."""
    same, others = exchangeable(pick)
    known = [
        pick.rented,
        *(one for one in same if is_rented_from("dstack", one.provider, pick.nodes)),
    ]
    placed = [one.region for one in known if is_in_one_region(one)]
    found = documents(
        "dstack", pick, launch, **values, has_image=values["image"] != _DEFAULT_IMAGE,
        command=launch.shell("$DSTACK_MASTER_NODE_IP").rstrip(),
        backends=_once([one.provider for one in known]),
        regions=_once(placed) if len(placed) == len(known) else [],
        machines=_once([_machine(one) for one in known]), resources=_resources(pick.rented),
        policy=pick.completion if pick.completion in ("on-demand", "spot") else "auto",
        max_price=max(one.price_usd_per_h for one in known),
    )  # fmt: skip
    return Exported(
        target="dstack",
        files={_FILE: yaml_text(found, pick)},
        run=f"dstack apply -f {_FILE}",
        notes=(
            *others,
            "dstack combines its lists freely and takes the cheapest offer up to max_price, the "
            "price of the most expensive machine among them",
        ),
    )


def _machine(one: Offer) -> str:
    """Return a machine as gpuhunt calls it: Nebius's with a space, GCP's without its cards."""
    if one.provider == "nebius":
        return one.instance_type.replace("_", " ", 1)
    return attached(one)[0]


def _resources(one: Offer) -> dict[str, Any]:
    """Return what the pinned machine has at least: dstack's own minimum leaves small ones out."""
    found: dict[str, Any] = {"cpu": "1..", "memory": "0.5GB..", "disk": "30GB.."}
    _, card, count = attached(one)
    if one.accelerator is not None and one.accelerators >= 1:
        found["gpu"] = {"count": count or int(one.accelerators)}
        if card:
            found["gpu"]["name"] = [card]
    return found


def _once(values: list[str]) -> list[str]:
    return list(dict.fromkeys(values))
