"""Speeds of vCPUs: what is measured stays, holes are filled in the order of the rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.catalogue import Catalogue, snapshot, specifications
from advisor.lab.catalogue import build


def fill(*rows: tuple[str, str, str, float, float]) -> list[tuple[float, str]]:
    provider, name, model = (np.array([row[at] for row in rows]) for at in range(3))
    measured, converted = (np.array([row[at] for row in rows]) for at in (3, 4))
    speed, source = specifications.fill(provider, name, model, measured, converted)
    return list(zip(speed.tolist(), source.tolist(), strict=True))


NO = float("nan")


def test_each_rule_applies_where_no_better_one_does() -> None:
    found = fill(
        ("aws", "m5.large", "Intel Xeon 8175M", 100.0, NO),
        ("aws", "m5.xlarge", "Intel Xeon 8175M", 300.0, NO),
        ("aws", "m5.metal", "", NO, 900.0),  # the family's median before an own estimate
        ("azure", "Standard_D2_v9", "AMD EPYC 7763", NO, 500.0),
        ("azure", "Standard_D4_v9", "", NO, NO),  # the family of an estimate
        ("azure", "Standard_F4_v9", "AMD EPYC 7763 64-Core Processor", NO, NO),
        ("gcp", "x1-standard-4", "AMD EPYC 7763", NO, NO),  # of another provider, at last
        ("gcp", "y1-standard-4", "", NO, NO),
    )
    assert found[:7] == [
        (100.0, "measured"),
        (300.0, "measured"),
        (200.0, "same family"),
        (500.0, "other benchmark"),
        (500.0, "same family"),
        (500.0, "same cpu model"),
        (500.0, "same cpu model"),
    ]
    assert np.isnan(found[7][0])
    assert found[7][1] == "unknown"


def test_a_measured_speed_is_never_changed() -> None:
    types = Catalogue.load(snapshot.bundled_folder(), with_overrides=False).types
    measured = np.where(types.core_speed_source == "measured", types.core_speed, np.nan)
    nothing = np.full(len(measured), np.nan)
    again, source = specifications.fill(
        types.provider, types.name, types.cpu_model, measured, nothing
    )
    known = ~np.isnan(measured)
    np.testing.assert_array_equal(again[known], measured[known])
    assert (source[known] == "measured").all()
    assert ((source == "unknown") == np.isnan(again)).all()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "8370c"),
        ("INTEL XEON PLATINUM 8573C", "8573c"),
        ("AMD EPYC 7763 64-Core Processor", "7763"),
        ("ARM Neoverse-N1 16 Core 0 MHz", "neoverse-n1"),
        ("ARM Neoverse-N1 2 Core 0 MHz", "neoverse-n1"),
    ],
)
def test_a_processor_is_known_by_its_number(model: str, expected: str) -> None:
    assert specifications.processor(model) == expected


def test_an_exact_law_between_benchmarks_is_found_again(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    geekbench = np.linspace(800, 3000, 12)
    is_arm = np.arange(12) % 2 == 0
    truth = 20.0 * geekbench**0.9 * np.where(is_arm, 1.5, 1.0)
    names = [f"f{n}.large" for n in range(12)]
    keys = {"provider": "p", "instance_type": names}
    pd.DataFrame(
        {**keys, "geekbench_single": geekbench, "passmark_single": np.nan,
         "stressng_bogo_s": np.nan, "stressngsinglecore_bogo_s": np.nan}
    ).to_csv(tmp_path / "cpu_speed.csv", index=False)  # fmt: skip
    types = pd.DataFrame(
        {**keys, "vcpus": 4, "cpu_arch": np.where(is_arm, "arm64", "x86_64"),
         "coremark_per_vcpu": np.where(np.arange(12) < 9, truth, np.nan)}
    )  # fmt: skip
    found = build.converted(tmp_path, types)
    assert set(found) == {("p", name) for name in names[9:]}
    for at in range(9, 12):
        assert found["p", names[at]] == pytest.approx(truth[at], rel=1e-3)
