"""The length of the whole job, found in loops of many shapes."""

from __future__ import annotations

import runpy
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from advisor.collectors.events import Events, LoaderCounts
from advisor.collectors.hooks import total_work as hook
from advisor.collectors.work import GivenWork, total_work

PREAMBLE = """
import itertools
class DataLoader(list):
    pass
class Config:
    def __init__(self, **values):
        self.__dict__.update(values)
"""


def look_at(folder: Path, source: str, *, batches_per_step: float = 1.0) -> Any:
    """Run a script that calls ``step()`` where an optimizer would; return what is derived."""
    seen: list[dict[str, Any]] = []
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count in (2, 5, 12):
            found = hook.find(sys._getframe(1))
            seen.append({"step": count, "candidates": found, "arguments": {}})

    script = folder / "train.py"
    script.write_text(PREAMBLE + source)
    runpy.run_path(str(script), init_globals={"step": step}, run_name="__main__")
    events = Events(facts={"work": seen})
    batches = round(100 * batches_per_step)
    events.loaders[0] = LoaderCounts(iterators=3, steps=100, batches=batches)
    return count, total_work(events, GivenWork(), samples_per_step=8.0)


CASES = {
    "plain epochs": """
loader = DataLoader(range(20))
for epoch in range(3):
    for batch in loader:
        step()
""",
    "settings behind names": """
cfg = Config(train=Config(epochs=4), data={"steps": 5})
for epoch in range(cfg.train.epochs):
    for i in range(cfg.data["steps"] * 2):
        step()
""",
    "a function called from main": """
def train_one_epoch(loader, epoch):
    for index, batch in enumerate(loader):
        step()
def main(epochs):
    loader = DataLoader(range(7))
    for epoch in range(epochs):
        train_one_epoch(loader, epoch)
if __name__ == "__main__":
    main(epochs=5)
""",
    "a trainer object": """
class Trainer:
    def __init__(self, loader, epochs):
        self.loader, self.epochs = loader, epochs
    def fit(self):
        for self.epoch in range(1, self.epochs + 1):
            self.run()
    def run(self):
        for batch in self.loader:
            self.update(batch)
    def update(self, batch):
        step()
Trainer(DataLoader(range(9)), 4).fit()
""",
    "arithmetic and lengths": """
data = list(range(64))
for epoch in range(max(1, int(2.5))):
    for start in range(0, len(data) - 4, 8):
        step()
""",
    "while with a counter": """
done = 0
while done < 40:
    step()
    done += 1
""",
    "while with a counter and another condition": """
done, limit, is_good = 0, 25, False
while done < limit and not is_good:
    done += 1
    step()
""",
    "one full batch an epoch": """
epochs = 30
for epoch in range(epochs):
    step()
""",
    "nested seeds": """
loader = DataLoader(range(11))
for seed in [1, 2, 3]:
    for epoch in range(2):
        for a, b in zip(loader, range(100)):
            step()
""",
    "limited by islice": """
for batch in itertools.islice(iter(range(1000)), 15):
    step()
""",
    "an endless loop with a way out": """
n = 0
while True:
    step()
    n += 1
    if n >= 23:
        break
""",
    "an endless iterator with a way out": """
for i in itertools.count():
    if i >= 19:
        break
    step()
""",
    "epochs cut short": """
loader = DataLoader(range(100))
for epoch in range(3):
    for i, batch in enumerate(loader):
        if i == 13:
            break
        step()
""",
    "broken off at a bound": """
bound = 17
n = 0
loader = DataLoader(range(10))
for epoch in range(100):
    for batch in loader:
        step()
        n += 1
        if n >= bound:
            break
    if n >= bound:
        break
""",
}


@pytest.mark.parametrize("name", CASES)
def test_the_job_is_as_long_as_the_script_runs(tmp_path: Path, name: str) -> None:
    count, work = look_at(tmp_path, CASES[name])
    assert work is not None
    assert work.steps == count
    assert work.confidence == "likely"
    assert "train.py:" in work.source


def test_accumulation_over_a_loader_divides(tmp_path: Path) -> None:
    source = """
loader = DataLoader(range(20))
for epoch in range(6):
    for number, batch in enumerate(loader):
        if number % 4 == 3:
            step()
"""
    count, work = look_at(tmp_path, source, batches_per_step=4.0)
    assert (work.steps, work.epochs) == (count, 6)


def test_accumulation_over_a_range_is_seen_in_the_counter(tmp_path: Path) -> None:
    source = """
for micro in range(120):
    if micro % 5 == 4:
        step()
"""
    count, work = look_at(tmp_path, source)
    assert work.steps == count


@pytest.mark.parametrize(
    "source",
    [
        "def batches():\n    yield from range(30)\nfor b in batches():\n    step()",
        "n = 0\nwhile True:\n    step()\n    n += 1\n    if __import__('math').sqrt(n) > 4: break",
        "for i in range(int(input.__name__ == 'x') or __import__('random').randint(20, 30)):\n"
        "    step()",
    ],
)
def test_what_cannot_be_known_is_not_guessed(tmp_path: Path, source: str) -> None:
    _, work = look_at(tmp_path, source)
    assert work is None


def test_a_loop_over_something_unknown_that_a_loader_feeds_is_a_weak_guess(tmp_path: Path) -> None:
    source = "for epoch in range(3):\n    for b in (x for x in range(10)):\n        step()"
    seen: list[dict[str, Any]] = []

    def step() -> None:
        seen.append({"step": 2, "candidates": hook.find(sys._getframe(1)), "arguments": {}})

    (tmp_path / "train.py").write_text(source)
    runpy.run_path(str(tmp_path / "train.py"), init_globals={"step": step})
    facts = {"work": seen[-1:], "loader": [{"loader": 0, "batches_per_epoch": 10}]}
    events = Events(facts=facts, loaders={0: LoaderCounts(iterators=2, steps=20, batches=20)})
    work = total_work(events, GivenWork(), samples_per_step=0.0)
    assert work is not None
    assert (work.steps, work.epochs, work.confidence) == (30, 3, "weak")


def test_properties_and_calls_with_effects_are_not_run(tmp_path: Path) -> None:
    source = """
class Settings:
    calls = 0
    @property
    def epochs(self):
        Settings.calls += 1
        return 3
settings = Settings()
for epoch in range(settings.epochs):
    for i in range(8):
        step()
assert Settings.calls == 1
"""
    _, work = look_at(tmp_path, source)
    assert work is None


@pytest.mark.parametrize(
    ("given", "steps", "source"),
    [
        (GivenWork(total_steps=123), 123, "--total-steps"),
        (GivenWork(total_samples=800), 100, "--total-samples"),
        (GivenWork(epochs=2.5), 50, "--epochs"),
    ],
)
def test_what_the_user_says_overrides_what_was_found(
    given: GivenWork, steps: int, source: str
) -> None:
    loop = {"turns": 7, "text": "x", "where": "t:1", "is_loader": False, "variable": 1}
    candidate = {"loops": [loop], "source": "x", "confidence": "likely"}
    events = Events(
        facts={
            "work": [{"step": 2, "candidates": [candidate]}],
            "loader": [{"loader": 0, "batches_per_epoch": 20}],
        }
    )
    work = total_work(events, given, samples_per_step=8.0)
    assert work is not None
    assert (work.steps, work.source, work.confidence) == (steps, source, "given")


def test_an_argument_is_the_last_resort() -> None:
    facts: dict[str, list[dict[str, Any]]] = {
        "work": [{"step": 2, "candidates": [], "arguments": {"epochs": 4}}],
        "loader": [{"loader": 0, "batches_per_epoch": 20}],
    }
    work = total_work(Events(facts=facts), GivenWork(), samples_per_step=0.0)
    assert work is not None
    assert (work.steps, work.confidence) == (80, "weak")
    del facts["loader"]
    assert total_work(Events(facts=facts), GivenWork(), samples_per_step=0.0) is None


class Activations:
    """What a step leaves in a variable."""


def test_looking_at_frames_keeps_nothing_of_the_script_alive() -> None:
    """Python before 3.13 keeps a copy of the variables of a function that was looked at."""
    out = Activations()
    watched = weakref.ref(out)
    hook.find(sys._getframe())
    del out
    assert watched() is None


def test_looking_at_frames_leaves_a_scripts_own_copy_of_its_variables() -> None:
    learning_rate = 0.1
    settings = locals()
    hook.find(sys._getframe())
    assert settings["learning_rate"] == learning_rate
