"""SkyPilot: a task with the pick first among its ordered resources.

Read against SkyPilot 0.14: ``infra`` is cloud/region; ``ordered`` is tried from the top;
``num_nodes`` holds for all of them; ``SKYPILOT_NODE_IPS`` lists the machines, the first first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.answer import Offer
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, is_rented_from
from advisor.export.templates import documents
from advisor.export.texts import attached, exchangeable, is_in_one_region, job_name, yaml_text
from advisor.providers import launcher_of

_FILE: Final = "task.yaml"
_MASTER: Final = '"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"'


def write(pick: Pick, launch: Launch, _: Mapping[str, str]) -> Exported:
    """Return the task; managed jobs restart where spot machines are taken away."""
    same, others = exchangeable(pick)
    known = [one for one in same if is_rented_from("skypilot", one.provider, pick.nodes)]
    found = documents(
        "skypilot", pick, launch, command=launch.shell(_MASTER), resources=_resources(pick, known)
    )
    is_managed = pick.completion != "on-demand"
    verb = "jobs launch" if is_managed else f"launch -c {job_name(pick.run)}"
    return Exported(
        target="skypilot",
        files={_FILE: yaml_text(found, pick)},
        run=f"sky {verb} {_FILE}",
        notes=(
            *others,
            *_left_out(same, known),
            "SkyPilot has no price limit and no time limit: it rents at the price of the moment",
        ),
    )


def _resources(pick: Pick, same: list[Offer]) -> list[dict[str, Any]]:
    """Return the pick, what may stand in for it, and on-demand machines where it falls back."""
    rows = [_resource(one, is_spot=one.pricing == "spot") for one in (pick.rented, *same)]
    if pick.is_spot and pick.completion != "spot":
        rows.append(_resource(pick.rented, is_spot=False))
    return [row for place, row in enumerate(rows) if row not in rows[:place]]


def _resource(one: Offer, *, is_spot: bool) -> dict[str, Any]:
    machine, card, count = attached(one)
    named = launcher_of("skypilot", one.provider) or {"cloud": one.provider, "type_prefix": ""}
    # A reseller has places of its own.
    has_place = is_in_one_region(one) and not named["type_prefix"]
    found: dict[str, Any] = {
        "infra": named["cloud"] + (f"/{one.region}" if has_place else ""),
        "instance_type": named["type_prefix"] + machine,
    }
    if card:
        found["accelerators"] = f"{card}:{count}"
    return found | {"use_spot": is_spot}


def _left_out(same: list[Offer], known: list[Offer]) -> Iterator[str]:
    left = {one.provider for one in same} - {one.provider for one in known}
    if left:
        yield f"alternatives that SkyPilot does not rent are comments only: {', '.join(left)}"
