"""The length of the whole job, found in loops of many shapes."""

from __future__ import annotations

import runpy
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.collectors.derive.work import GivenWork, endless_loop, length_hint, total_work, unused
from advisor.collectors.format.events import Events, LoaderCounts
from advisor.collectors.format.recording import TotalWork
from advisor.collectors.hooks.trace import frames as hook

PREAMBLE = """
import itertools
class DataLoader(list):
    pass
class Config:
    def __init__(self, **values):
        self.__dict__.update(values)
"""


def run_alone(script: Path, step: Callable[[], None]) -> None:
    """Run a script on a stack of its own: under it stands no test runner whose loops are read."""
    with ThreadPoolExecutor(1) as alone:
        alone.submit(runpy.run_path, str(script), {"step": step}, "__main__").result()


def look_at(
    folder: Path, source: str, *, batches_per_step: float = 1.0, last: int = 0
) -> tuple[int, Any]:
    """Run a script that calls ``step()`` where an optimizer would; return what is derived.

    Its loops are looked at three times early on, and again at step ``last``.
    """
    seen: list[dict[str, Any]] = []
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count in (2, 5, 12, last):
            found = hook.find(sys._getframe(1))
            seen.append({"step": count, "candidates": found, "arguments": {}})

    script = folder / "train.py"
    script.write_text(PREAMBLE + source)
    run_alone(script, step)
    events = Events(facts={"work": seen})
    batches = round(100 * batches_per_step)
    events.loaders[0] = LoaderCounts(iterators=3, steps=100, batches=batches)
    return count, total_work(events, GivenWork(), samples_per_step=8.0)


class StoppedError(Exception):
    """What ends a script from outside."""


# Where a script never ends by itself, the loop that says so; "" where something else decides.
ENDLESS = {
    "while True": ("while True:\n    step()", "while True, train.py:"),
    "while 1 around epochs": (
        "while 1:\n    for _ in range(4):\n        step()", "while 1, train.py:",
    ),
    "count": ("for i in itertools.count():\n    step()", "for itertools.count(), train.py:"),
    "a number for no end": ("for i in range(10**9):\n    step()", "for range(10**9), train.py:"),
    "the largest number": (
        "import sys\nfor i in range(sys.maxsize):\n    step()",
        "for range(sys.maxsize), train.py:",
    ),
    "a long job": ("for i in range(10**7):\n    step()", ""),
    "what a loss decides": ("loss = 1.0\nwhile loss > 0.1:\n    step()\n    loss *= 0.999", ""),
    "a loop that is left": (
        "loss = 1.0\nwhile True:\n    step()\n    loss *= 0.99\n    if loss < 0.1:\n        break",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_loop_without_an_end_has_no_length_and_is_named(tmp_path: Path, kind: str) -> None:
    source, loop = ENDLESS[kind]
    seen: list[dict[str, Any]] = []

    def step() -> None:
        found = hook.find(sys._getframe(1))
        seen.append({"step": len(seen) + 1, "candidates": found, "arguments": {}})
        if len(seen) == 3:
            raise StoppedError

    script = tmp_path / "train.py"
    script.write_text(PREAMBLE + source)
    with pytest.raises(StoppedError):
        run_alone(script, step)
    events = Events(facts={"work": seen})
    if loop:
        assert total_work(events, GivenWork(), samples_per_step=8.0) is None
    named = endless_loop(events)
    assert named.removeprefix("endless (").startswith(loop)
    assert bool(named) == bool(loop)


def test_an_argument_or_a_framework_that_says_no_end_says_no_length() -> None:
    arguments = {"arguments": {"max_steps": float(sys.maxsize)}, "candidates": [], "step": 2}
    state = {"steps": sys.maxsize, "source": "state.max_steps", "confidence": "certain"}
    for fact in (arguments, {"arguments": {}, "candidates": [state], "step": 2}):
        assert (
            total_work(Events(facts={"work": [fact]}), GivenWork(), samples_per_step=1.0) is None
        )


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
    "an epoch cut off at a bound that is an option": """
args = Config(epochs=4, max_batches=6, dry_run=False)
loader = DataLoader(range(40))
for epoch in range(args.epochs):
    for i, batch in enumerate(loader):
        if args.max_batches is not None and i >= args.max_batches:
            break
        step()
""",
    "a bound that is not asked for": """
args = Config(epochs=3, max_batches=0, limit=None)
loader = DataLoader(range(9))
for epoch in range(args.epochs):
    for i, batch in enumerate(loader):
        if args.max_batches > 0 and i >= args.max_batches:
            break
        if args.limit is not None and i > args.limit:
            break
        step()
""",
    "cut off behind the step": """
loader = DataLoader(range(40))
for epoch in range(4):
    for i, batch in enumerate(loader):
        step()
        if i >= 6:
            break
""",
    "cut off behind the step, counted from one": """
loader = DataLoader(range(40))
for epoch in range(4):
    for i, batch in enumerate(loader, 1):
        step()
        if i == 6:
            break
""",
    "cut off behind the step by the number of the next": """
loader = DataLoader(range(40))
for epoch in range(4):
    for i, batch in enumerate(loader, start=0):
        step()
        if 6 <= i + 1:
            break
""",
    "a dry run": """
args = Config(dry_run=True, epochs=14)
loader = DataLoader(range(40))
def train(epoch):
    for i, batch in enumerate(loader):
        step()
        if i % 10 == 0:
            if args.dry_run:
                break
for epoch in range(1, args.epochs + 1):
    train(epoch)
""",
    "a counter that begins anew in every epoch": """
loader = DataLoader(range(40))
for epoch in range(5):
    done = 0
    for batch in loader:
        step()
        done += 1
        if done >= 15:
            break
""",
    "a counter that begins anew in every call": """
loader = DataLoader(range(90))
def train():
    seen = 0
    for batch in loader:
        if seen >= 60:
            break
        step()
        seen += 4
for epoch in range(5):
    train()
""",
    "a counter of the object that runs through the job": """
class Trainer:
    iteration = 0
    def run(self):
        loader = DataLoader(range(10))
        while True:
            for batch in loader:
                self.update()
            if self.iteration >= 40:
                break
    def update(self):
        step()
        self.iteration += 1
Trainer().run()
""",
    "a while that others count for": """
state, limit = Config(done=0), 30
def update():
    step()
    state.done += 1
loader = DataLoader(range(10))
while state.done < limit:
    for batch in loader:
        update()
""",
    "a while that begins at one and goes in twos": """
n = 1
while n <= 40:
    step()
    n += 2
""",
    "epochs times a range over a tensor": """
import torch
args = Config(epochs=3, bptt=7)
data = torch.zeros(100, 4)
def train():
    for batch, i in enumerate(range(0, data.size(0) - 1, args.bptt)):
        step()
for epoch in range(1, args.epochs + 1):
    train()
""",
    "epochs times slices of an array": """
import math, numpy as np
x, size = np.zeros((103, 4)), 10
permutation = np.random.permutation(x.shape[0])
for epoch in range(3):
    for number in range(math.ceil(x.shape[0] / size)):
        step()
""",
    "settings of a dictionary that are attributes": """
class Settings(dict):
    __getattr__ = dict.__getitem__
cfg = Settings(train=Settings(epochs=5), quick=False)
for epoch in range(cfg.train.epochs if not cfg.quick else 1):
    for i in range(cfg.get("steps", 2 ** 3)):
        step()
""",
    "many calls between the loops": """
def outer(loader):
    for fold in range(2):
        for epoch in range(3):
            one(loader)
def one(loader):
    two(loader)
def two(loader):
    for batch in loader:
        three(lambda: batch)
def three(closure):
    four(closure())
def four(batch):
    for micro in range(1):
        step()
outer(DataLoader(range(8)))
""",
    "a loader that begins again and again": """
loader = DataLoader(range(10))
for number, batch in enumerate(itertools.cycle(loader)):
    if number >= 35:
        break
    step()
""",
    "a loader beside a range": """
loader = DataLoader(range(10))
for number, batch in zip(range(27), itertools.cycle(loader)):
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


UNKNOWN = {
    "episodes of unknown length": """
for episode in range(30):
    for t in range(500):
        step()
        done = (t * 7 + episode) % 11 == 10
        if done:
            break
""",
    "episodes until the score is good": """
score = 0.0
for episode in itertools.count(1):
    for t in range(3):
        pass
    step()
    score += 0.5
    if score > 20:
        break
""",
    "an environment that ends when it likes": """
for episode in range(6):
    done, t = False, 0
    while not done:
        step()
        t += 1
        done = t > 4 + episode
""",
    "a loop in a package": """
loader = (i for i in range(30))
while True:
    try:
        batch = next(loader)
    except StopIteration:
        break
    step()
""",
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("last", [0, 27])
def test_a_length_that_only_the_run_can_show_is_left_unknown(
    tmp_path: Path, name: str, last: int
) -> None:
    _, work = look_at(tmp_path, UNKNOWN[name], last=last)
    assert work is None


def test_loops_that_turn_on_early_are_not_believed(tmp_path: Path) -> None:
    """Nothing in the source says it, but the second epoch began after 4 steps of 20."""
    source = """
def batches():
    loader = DataLoader(range(20))
    for epoch in range(50):
        for i, batch in enumerate(loader):
            if (i * i) % 5 == 1:
                continue
            if i % 3:
                continue
            step()
batches()
"""
    count, work = look_at(tmp_path, source, last=100)
    assert work is None or abs(work.steps - count) < 0.1 * count


def test_sightings_before_the_steps_were_counted_anew_are_no_contradiction(tmp_path: Path) -> None:
    """A higher clock began: its second step comes after the fifth of the lower one."""
    inner = {"turns": 10, "text": "range(10)", "where": "t:2", "is_loader": False, "variable": 1}
    outer = {"turns": 6, "text": "range(6)", "where": "t:1", "is_loader": False, "variable": 0}
    facts = [
        {"step": step, "candidates": [{"loops": [inner, {**outer, "variable": turn}],
                                       "source": "x", "confidence": "likely"}]}
        for step, turn in ((40, 4), (2, 5))
    ]  # fmt: skip
    work = total_work(Events(facts={"work": facts}), GivenWork(), samples_per_step=0.0)
    assert work is not None
    assert work.steps == 60


def test_a_job_that_goes_on_from_a_checkpoint_counts_what_is_left(tmp_path: Path) -> None:
    source = "it = 1000\nwhile True:\n    step()\n    it += 1\n    if it >= 1040:\n        break"
    count, work = look_at(tmp_path, source)
    assert abs(work.steps - count) <= 1


def test_patience_makes_the_length_a_weak_guess(tmp_path: Path) -> None:
    source = """
import random
for epoch in range(10):
    for i in range(7):
        step()
    loss = random.random()
    if loss < -1:
        break
"""
    count, work = look_at(tmp_path, source)
    assert (work.steps, work.confidence) == (count, "weak")


def test_an_episodes_longest_length_is_not_the_jobs(tmp_path: Path) -> None:
    loop = {"turns": 9, "text": "x", "where": "t:1", "is_loader": False, "variable": 1}
    inner = {**loop, "turns": None, "may_end": True}
    candidate = {"loops": [inner, loop], "source": "x", "confidence": "likely"}
    fact = {"step": 2, "candidates": [candidate], "arguments": {"max_steps": 500}}
    assert total_work(Events(facts={"work": [fact]}), GivenWork(), samples_per_step=1.0) is None


def test_epochs_can_be_given_where_a_loop_counts_them(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def step() -> None:
        seen.append({"step": 2, "candidates": hook.find(sys._getframe(1)), "arguments": {}})

    (tmp_path / "train.py").write_text("for epoch in range(3):\n    for i in range(9): step()")
    run_alone(tmp_path / "train.py", step)
    events = Events(facts={"work": seen[-1:]})
    work = total_work(events, GivenWork(epochs=5), samples_per_step=0.0)
    assert work is not None
    assert (work.steps, work.epochs, work.confidence) == (45, 5, "given")
    found = total_work(events, GivenWork(), samples_per_step=0.0)
    assert found is not None
    assert (found.steps, found.epochs) == (27, 3)


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
    run_alone(tmp_path / "train.py", step)
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


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        *[({name: 5000}, 5000) for name in ("num_iterations", "max_train_steps", "train_iters",
                                            "num_training_steps", "max_updates")],
        ({"train_samples": 8000}, 1000),
        ({"total_tokens": 1 << 30, "total_batch_size": 1 << 19}, 2048),
        ({"total_tokens": 1 << 30, "block_size": 1024}, (1 << 30) / (8 * 1024)),
        ({"total_tokens": 1 << 30, "total_batch_size": 64, "seq_len": 1024}, 1 << 14),
        ({"total_timesteps": 80_000, "num_steps": 128}, 10_000),
        ({"total_timesteps": 80_000, "update_epochs": 4}, 40_000),
        ({"total_timesteps": 80_000, "train_frequency": 4}, 20_000),
        ({"total_tokens": 1 << 30}, None),
    ],
)  # fmt: skip
def test_frameworks_names_of_a_length_say_it(arguments: dict[str, int], steps: float) -> None:
    fact = {"step": 2, "candidates": [], "arguments": arguments}
    work = total_work(Events(facts={"work": [fact]}), GivenWork(), samples_per_step=8.0)
    assert (work and work.steps) == steps
    assert work is None or work.confidence == "weak"


def test_hours_are_no_number_of_steps() -> None:
    fact = {"step": 2, "candidates": [], "arguments": {"max_hours": 8}}
    events = Events(facts={"work": [fact]})
    assert total_work(events, GivenWork(), samples_per_step=8.0) is None
    assert "8 h long" in endless_loop(events)


def test_a_length_is_found_in_the_scripts_own_variables_and_settings() -> None:
    class Settings:
        pass

    config = Settings()
    config.__dict__.update(max_train_steps=70, verbose=True)
    opt = {"train_samples": 9}
    num_iterations = 5000
    found = hook.named_lengths(sys._getframe())
    assert found == {"num_iterations": num_iterations, "max_train_steps": 70, **opt}
    assert config


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


def seen(**changes: Any) -> Any:
    """Return what ``length_hint`` looks at of a recording."""
    nothing = {"loading": None, "total_work": None, "step_samples": None}
    return SimpleNamespace(**{**nothing, **changes})


def test_hints_name_only_options_that_work() -> None:
    loading = SimpleNamespace(batches_per_epoch=10, dataset_samples=None)
    epochs = SimpleNamespace(epochs=4.0, confidence="likely")
    assert length_hint(seen()) == "--total-steps N"
    assert length_hint(seen(step_samples=8.0)) == "--total-steps N or --total-samples N"
    assert length_hint(seen(loading=loading)) == "--epochs N or --total-steps N"
    assert "--epochs" in length_hint(seen(total_work=epochs))


def test_a_length_that_cannot_be_used_is_not_dropped_in_silence() -> None:
    warning = unused(GivenWork(epochs=3), None, seen(step_samples=8.0))
    assert "--epochs 3 has no effect" in warning
    assert warning.endswith("use --total-steps N or --total-samples N")
    assert "--total-samples 9 has no effect" in unused(GivenWork(total_samples=9), None, seen())
    given = TotalWork(steps=3, epochs=None, source="--epochs", confidence="given")
    assert unused(GivenWork(epochs=3), given, seen()) == ""
