"""So many accelerators are in machines that exist, and every door takes the same ones."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.catalogue import Catalogue
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.machines import accelerator_devices, one_group
from advisor.machines.cluster import machines_filled

RUN = CliRunner()
CATALOGUE = Catalogue.load(with_overrides=False)
GPT2 = ("--layers", "12", "--hidden", "768", "--heads", "12", "--sequence", "512",
        "--batch", "480", "--total-steps", "100")  # fmt: skip
CARDS = sorted(accelerator_devices())


def said(*words: str, code: int = 0) -> str:
    done = RUN.invoke(app, list(words), env={"COLUMNS": "80"})
    assert (done.exit_code if code == 0 else getattr(done.exception, "exit_code", 0)) == code
    return done.stdout if code == 0 else f"{done.exception} {done.exception.hint}"  # type: ignore[union-attr]


def record_of(*words: str) -> Any:
    return json.loads(said(*words, "--json"))


def rented(card: str) -> list[int]:
    """Sizes of the machines of the catalogue with a card, whole cards only."""
    counts = CATALOGUE.types.accelerator_count[CATALOGUE.types.accelerator == card]
    return sorted({int(n) for n in counts.tolist() if n >= 1 and n % 1 == 0})


@given(st.sampled_from(CARDS), st.integers(1, 5000))
def test_accelerators_fill_machines_that_exist(card: str, count: int) -> None:
    """Up to what one holds they are in one; a size that is rented comes before a part of one."""
    sizes = rented(card) or list(range(1, 9))
    most = sizes[-1]
    needed = math.ceil(count / most)
    try:
        machines, each = machines_filled(count, card, CATALOGUE)
    except UsageError as error:
        assert count > most
        assert not any(count % n == 0 and count // n <= 2 * needed for n in range(1, most + 1))
        for near in re.findall(r"(\d+) or (\d+)", error.hint)[0]:
            assert math.prod(machines_filled(int(near), card, CATALOGUE)) == int(near)
        return
    assert machines * each == count
    assert (machines == 1) == (count <= most)
    if machines > 1:
        assert machines <= 2 * needed
        filling = [n for n in sizes if count % n == 0 and count // n <= 2 * needed]
        usual = [n for n in filling if n <= 8]
        assert each == max(usual or filling or [each])


@pytest.mark.parametrize(
    ("card", "count", "machines"),
    [("A100-SXM4-80GB", 16, 2), ("A100-SXM4-40GB", 16, 1), ("H100-SXM5-80GB", 12, 3),
     ("RTX-4090", 16, 2), ("GB200-186GB", 16, 4), ("V100-SXM2-16GB", 10, 2)],
)  # fmt: skip
def test_predict_plan_and_python_take_the_same_machines(
    card: str, count: int, machines: int
) -> None:
    each = count // machines
    predicted = record_of("predict", *GPT2, "--gpu", card, "--count", str(count))
    (part,) = predicted["configuration"]
    assert (part["count"] * part["accelerators_per_instance"], predicted["devices"]) == (
        count,
    ) * 2
    assert (part["count"] == machines) == (machines > 1 or count == 1)
    step = predicted["step_time_s"]
    group = one_group(f"{count}x{card}", CATALOGUE)
    assert (group.count, group.node.devices) == (machines, each)
    for cluster in (f"{count}x{card}", f"{machines}x{each}x{card}"):
        plan = record_of("plan", *GPT2, "--cluster", cluster)["plans"][0]
        assert plan["step_time_s"]["value"] == pytest.approx(step["value"], rel=1e-6), cluster
    words = " ".join(said("predict", *GPT2, "--gpu", card, "--count", str(count)).split())
    assert (f"({machines} machines of {each}, network assumed)" in words) == (machines > 1)
    assert ("network between machines" in words) == (machines > 1)


def test_an_assumed_network_is_less_sure_than_the_same_one_stated() -> None:
    """Cards behind a slow network: what is not known of it is in the interval."""
    assumed = record_of("predict", *GPT2, "--gpu", "RTX-4090", "--count", "16")["step_time_s"]
    stated = record_of("plan", *GPT2, "--cluster", "2x8xRTX-4090@10Gbps")["plans"][0][
        "step_time_s"
    ]
    assert stated["value"] == pytest.approx(assumed["value"], rel=1e-6)
    assert stated["high"] / stated["low"] < assumed["high"] / assumed["low"]
    said("predict", *GPT2, "--gpu", "RTX-4090", "--count", "16", "--known-network", code=3)


@pytest.mark.parametrize(
    ("gpus", "count"), [("H100-SXM5-80GB:16", 16), ("H100-SXM5-80GB:12", 12), ("A100-80GB:32", 32)]
)
def test_a_recommendation_of_more_than_a_machine_holds_is_of_exactly_so_many(
    gpus: str, count: int
) -> None:
    found = record_of("recommend", *GPT2, "--gpus", gpus)
    assert found["front"]
    for one in found["front"]:
        (part,) = one["configuration"]
        assert part["count"] * part["accelerators_per_instance"] == one["devices"] == count
        assert part["accelerators_per_instance"] in rented(part["accelerator"])
    (card,) = {one["configuration"][0]["accelerator"] for one in found["front"]}
    machines, _ = machines_filled(count, card, CATALOGUE)
    assert {one["configuration"][0]["count"] for one in found["front"]} == {machines}


def test_what_a_machine_holds_is_asked_for_as_before() -> None:
    """Eight to a machine, in any number of machines."""
    found = record_of(
        "recommend", *GPT2[:-2], "--tokens", "20B", "--gpus", "H100:8", "--gain", "0%"
    )
    assert {one["configuration"][0]["accelerators_per_instance"] for one in found["front"]} == {8}
    assert len({one["devices"] for one in found["front"]}) > 1


@pytest.mark.parametrize(
    ("words", "says"),
    [(("predict", "--gpu", "H100", "--count", "17"), "ask for 16 or 18"),
     (("recommend", "--gpus", "H100:17"), "ask for 16 or 20"),
     (("plan", "--cluster", "17xH100"), "ask for 16 or 18"),
     (("recommend", "--gpus", "H100:128"), "--max-nodes 16")],
)  # fmt: skip
def test_a_number_that_fills_no_machines_names_the_nearest_that_does(
    words: tuple[str, ...], says: str
) -> None:
    verb, *rest = words
    assert says in said(verb, *GPT2, *rest, code=2)


def test_ones_own_machine_of_sixteen_is_one(tmp_path: Any) -> None:
    """What the catalogue has decides, also where the user added it."""
    own = tmp_path / "overrides.csv"
    own.write_text(
        "rule,provider,instance_type,value,vcpus,memory_gib,accelerator,accelerator_count\n"
        "machine,lab,hgx2,4,96,1536,V100-SXM2-16GB,16\n"
    )
    added = Catalogue.load(overrides=own)
    assert machines_filled(16, "V100-SXM2-16GB", CATALOGUE) == (2, 8)
    assert machines_filled(16, "V100-SXM2-16GB", added) == (1, 16)
    assert np.isin(16, added.types.accelerator_count)
    assert one_group("1x16xV100-SXM2-16GB", CATALOGUE).count == 1  # its owner says so
