"""The device process recovers jobs that obey its law, and leaves left-out labels alone."""

import dataclasses

import numpy as np
import pytest

from advisor.learned.device_gp import Cells, DeviceProcess


def cells() -> Cells:
    """Eight devices, three jobs whose time per sample is exactly compute plus traffic."""
    rng = np.random.default_rng(0)
    peak, bandwidth = rng.uniform(20, 300, 8) * 1e12, rng.uniform(3, 20, 8) * 1e11
    device, job = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(3), indexing="ij"))
    flop, traffic = np.array([1e11, 3e10, 5e9]), np.array([1e8, 3e8, 4e8])
    seconds = flop[job] / peak[device] + traffic[job] / bandwidth[device]
    return Cells(
        log_throughput=-np.log(seconds),
        batch=np.full(24, 32.0),
        weight=np.ones(24),
        device=device,
        generation=device // 4,
        job=job,
        precision=np.zeros(24, np.int64),
        peak=peak[device],
        full_peak=peak[device],
        sustained_peak=peak[device],
        vector_peak=peak[device] / 8,
        bandwidth=bandwidth[device],
        memory=np.full(24, 16e9),
    )


@pytest.mark.parametrize("has_process", [False, True])
def test_jobs_that_obey_the_law_are_found_on_an_unseen_device(has_process: bool) -> None:
    table = cells()
    mean, sd = DeviceProcess(has_process=has_process).fit_predict(table, table.device != 3)
    out = table.device == 3
    assert np.max(np.abs(mean - table.log_throughput)[out]) < 0.15
    if has_process:
        assert np.all(sd[out] > 0)


def test_nothing_of_the_left_out_device_but_its_specification_is_used() -> None:
    table = cells()
    known = table.device != 3
    shifted = dataclasses.replace(
        table, log_throughput=np.where(known, table.log_throughput, 99.0)
    )
    one, _ = DeviceProcess().fit_predict(table, known)
    two, _ = DeviceProcess().fit_predict(shifted, known)
    np.testing.assert_array_equal(one, two)
