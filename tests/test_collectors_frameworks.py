"""The training frameworks themselves, unchanged scripts: steps, total work, callbacks.

These need the real libraries: the extra ``frameworks``, which ``dev`` includes. Where one is not
installed its tests are skipped, and say so.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from collecting import only_advisor, record, record_command

from advisor.collectors.format.recording import Recording

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]


def needs(library: str) -> None:
    """Skip where a framework is not installed; finding out must not import it."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", only_advisor(tmp_path))
    monkeypatch.chdir(tmp_path)


LIGHTNING = """
import sys, torch, lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
callbacks = []
if "--callback" in sys.argv:
    from advisor.collectors.callbacks import lightning_callback
    callbacks.append(lightning_callback())
data = TensorDataset(torch.randn(232, 16), torch.randint(0, 2, (232,)))
trainer = lightning.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, accumulate_grad_batches=2, callbacks=callbacks,
)
trainer.fit(Model(), DataLoader(data, batch_size=8))
"""


def check(seen: Recording, *, steps: int, source: str) -> None:
    assert seen.exit_code == 0
    assert seen.step_time is not None
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (steps, "certain")
    assert source in seen.total_work.source


def test_lightning(tmp_path: Path) -> None:
    needs("lightning")
    seen = record(tmp_path, LIGHTNING)
    check(seen, steps=4 * 15, source="Lightning")
    assert seen.step_time is not None
    assert seen.step_time.clock == "optimizer"
    assert seen.accumulation_steps == 2
    assert seen.deep_step is not None
    assert seen.deep_step.parameters == 16 * 32 + 32 + 32 * 2 + 2
    assert seen.step_samples == pytest.approx(16, rel=0.1)


def test_lightning_stops_gently(tmp_path: Path) -> None:
    needs("lightning")
    seen = record(tmp_path, LIGHTNING, limit_steps=20)
    assert (seen.status, seen.exit_code) == ("stopped", 0)


def test_the_lightning_callback(tmp_path: Path) -> None:
    needs("lightning")
    seen = record(tmp_path, LIGHTNING, "--callback")
    assert seen.step_time is not None
    assert seen.step_time.clock == "marker"
    assert seen.step_time.steps + seen.step_time.warmup_steps <= 60


HUGGING_FACE = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
)
class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 128
    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (32,))
        return {"input_ids": tokens, "labels": tokens}
callbacks = []
if "--callback" in sys.argv:
    from advisor.collectors.callbacks import hugging_face_callback
    callbacks.append(hugging_face_callback())
arguments = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=Text(), callbacks=callbacks).train()
"""


def test_hugging_face_trainer(tmp_path: Path) -> None:
    needs("transformers")
    seen = record(tmp_path, HUGGING_FACE, str(tmp_path / "out"))
    check(seen, steps=2 * 16, source="Hugging Face")
    assert seen.step_time is not None
    assert seen.step_time.clock == "optimizer"
    assert seen.accumulation_steps == 2
    assert seen.told is not None
    assert seen.told.stack == "trainer"
    assert seen.step_samples == pytest.approx(8, rel=0.1)
    deep = seen.deep_step
    assert deep is not None
    assert deep.samples == 8
    assert deep.flags == ()


def test_hugging_face_trainer_stops_gently(tmp_path: Path) -> None:
    needs("transformers")
    seen = record(tmp_path, HUGGING_FACE, str(tmp_path / "out"), limit_steps=12)
    assert (seen.status, seen.exit_code) == ("stopped", 0)


def test_the_hugging_face_callback(tmp_path: Path) -> None:
    needs("transformers")
    seen = record(tmp_path, HUGGING_FACE, str(tmp_path / "out"), "--callback")
    check(seen, steps=2 * 16, source="advisor.step")
    assert seen.step_time is not None
    assert seen.step_time.clock == "marker"
    assert seen.step_samples == 8


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
x = np.random.rand(464, 16).astype("float32")
model.fit(x, x.sum(1), epochs=3, batch_size=16, verbose=0)
"""


def test_keras_on_torch(tmp_path: Path) -> None:
    needs("keras")
    seen = record(tmp_path, KERAS)
    check(seen, steps=3 * 29, source="Keras")
    assert seen.step_time is not None
    assert seen.step_time.clock == "backward"  # Keras brings its own optimizers
    assert seen.deep_step is not None
    assert seen.deep_step.parameters >= 16 * 32 + 32 + 32 + 1


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(160, 16)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
epochs = 4
for epoch in range(epochs):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def test_accelerate_launch(tmp_path: Path) -> None:
    needs("accelerate")
    script = tmp_path / "train.py"
    script.write_text(ACCELERATE)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    seen = record_command(tmp_path, [*launch, str(script)])
    assert seen.exit_code == 0
    assert seen.step_time is not None
    assert seen.step_time.clock == "optimizer"
    assert seen.total_work is not None
    assert seen.total_work.steps == 4 * 10
    assert seen.accumulation_steps == 2


JAX = """
import sys
import jax, jax.numpy as jnp
@jax.jit
def update(weights, x, y):
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.01 * gradient
x, y, weights = jnp.ones((32, 16)), jnp.ones((32, 1)), jnp.zeros((16, 1))
for number in range(60):
    weights = update(weights, x, y).block_until_ready()
"""

TENSORFLOW = """
import sys
import tensorflow as tf
weights = tf.Variable(tf.zeros((16, 1)))
optimizer = tf.keras.optimizers.SGD(0.01)
@tf.function
def update(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
data = tf.data.Dataset.from_tensor_slices((tf.ones((1920, 16)), tf.ones((1920, 1)))).batch(32)
for x, y in data:
    update(x, y)
"""
MARK = "    step(samples=32, total_steps=600)\n"


def test_frameworks_without_hooks_give_resources(tmp_path: Path) -> None:
    needs("tensorflow")
    plain = record(tmp_path, TENSORFLOW)
    assert (plain.exit_code, plain.step_time, plain.total_work) == (0, None, None)
    assert plain.peak_rss_bytes > 50 * 2**20


@pytest.mark.parametrize(
    ("library", "source"), [("jax", JAX), ("tensorflow", TENSORFLOW)], ids=["jax", "tensorflow"]
)
def test_marked_steps_lead_over_what_the_hooks_see(
    tmp_path: Path, library: str, source: str
) -> None:
    needs(library)
    seen = record(tmp_path, "from advisor import step" + source + MARK)
    check(seen, steps=600, source="advisor.step")
    assert seen.step_time is not None
    assert seen.step_time.clock == "marker"
    # Sixty marks are fifty-nine intervals.
    assert seen.step_time.steps + seen.step_time.warmup_steps == 59
    assert seen.step_samples == 32


def test_the_length_of_a_marked_loop_is_found(tmp_path: Path) -> None:
    needs("jax")
    seen = record(tmp_path, "from advisor import step" + JAX + "    step()\n")
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (60, "likely")


DEEPSPEED = """
import torch, deepspeed
from torch import nn
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for number in range(40):
    loss = nn.functional.cross_entropy(engine(torch.randn(8, 32)), torch.randint(0, 4, (8,)))
    engine.backward(loss)
    engine.step()
print(engine.global_steps)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # DeepSpeed compiles an operator of its own once, minutes long
def test_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with the user's own optimizer: a step is a whole accumulation."""
    needs("deepspeed")
    rank = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29577}
    for name, value in rank.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen = record(tmp_path, DEEPSPEED, limit_s=600.0)
    assert seen.exit_code == 0
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.accumulation_steps, seen.world_size) == (20, 2, 1)
    assert seen.told is not None
    assert seen.told.stack == "deepspeed"
    assert seen.step_time is not None
    assert (seen.step_time.clock, seen.optimizers) == ("optimizer", ("SGD",))
