"""Clocks that jump while something is recorded: daylight saving, a set clock, a machine's sleep.

libfaketime answers in place of the system: whoever asks for the time of day reads it from a file
that the script writes. Only the time of day jumps; the system's own count of seconds cannot.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from collecting import advisor

libfaketime = pytest.importorskip("libfaketime")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libfaketime is preloaded")

STEPS = 40
# Half way through, the clock is set; the script notes what it sees on either side.
SCRIPT = """
import os, sys, time
from advisor.collectors.marker import step
seen = []
for number in range({steps}):
    if number == {steps} // 2:
        with open(os.environ["FAKETIME_TIMESTAMP_FILE"], "w") as file:
            file.write(sys.argv[1])
    time.sleep(0.02)
    seen.append(time.time())
    step(samples=4)
print("jumped", max((abs(b - a) for a, b in zip(seen, seen[1:]))))
"""


def faked(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment in which the file ``clock`` says what time it is."""
    clock = folder / "clock"
    if not clock.exists():
        clock.write_text("+0")
    return {
        "LD_PRELOAD": str(Path(libfaketime.__file__).parent.joinpath(*LIBRARY)),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        **more,
    }


LIBRARY = ("vendor", "libfaketime", "src", "libfaketime.so.1")


@pytest.mark.parametrize(
    ("jump", "seconds"),
    [("-400d", 400 * 86400), ("+30d", 30 * 86400)],
    ids=["set back before the last release", "a month asleep"],
)
def test_a_clock_that_is_set_changes_no_step(tmp_path: Path, jump: str, seconds: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(steps=STEPS))
    done = advisor(tmp_path, "profile", "train.py", jump, umask=-1, **faked(tmp_path))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("jumped")[1].split()[0]) == pytest.approx(seconds, rel=0.01)
    shown = advisor(tmp_path, "runs", "show", "train", "--json", umask=-1, **faked(tmp_path))
    record = json.loads(shown.stdout)
    steps = record["step_time"]
    assert record["status"] == "finished"
    assert steps["steps"] + steps["warmup_steps"] == STEPS - 1
    assert 0.02 <= steps["corrected_s"] < 0.5
    assert STEPS * 0.02 <= record["duration_s"] < 60.0


def test_the_hour_that_comes_twice_keeps_the_order_of_runs(tmp_path: Path) -> None:
    """On 25 October 2026 Berlin's clocks go from 3:00 back to 2:00, which is 1:00 UTC."""
    (tmp_path / "train.py").write_text(SCRIPT.format(steps=4))
    back = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
    for minutes in (-10, 20):  # 2:50 in summer time, then 2:20 in winter time
        ahead = f"{back + minutes * 60 - time.time():+.0f}"
        (tmp_path / "clock").write_text(ahead)
        environment = faked(tmp_path, TZ="Europe/Berlin")
        named = ("profile", "--name", f"at{minutes}", "train.py", ahead)
        done = advisor(tmp_path, *named, umask=-1, **environment)
        assert done.returncode == 0, done.stderr
    listed = advisor(tmp_path, "runs", "list", "--json", umask=-1, **environment)
    assert ["at-10" in one["run"] for one in json.loads(listed.stdout)["runs"]] == [True, False]
