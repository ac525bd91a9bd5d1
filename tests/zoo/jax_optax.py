# zoo: steps=1200 args="--epochs 12" minute=yes needs=jax,optax,sklearn
"""JAX and optax: digits by a multilayer perceptron, a jitted update and a jitted accuracy."""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--batches", type=int, default=100, help="in an epoch")
args = parser.parse_args()


def init(key, sizes):
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, (m, n)) * (2.0 / m) ** 0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:])
    ]


def logits(params, x):
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


optimizer = optax.adamw(1e-3)


@jax.jit
def train_step(params, state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


@jax.jit
def accuracy(params, x, y):
    return (logits(params, x).argmax(-1) == y).mean()


images, labels = load_digits(return_X_y=True)
images = np.asarray(images / 16.0, dtype="float32")
params = init(jax.random.PRNGKey(0), [64, 512, 512, 10])
state = optimizer.init(params)
random = np.random.default_rng(0)
steps = 0
for epoch in range(args.epochs):
    for _ in range(args.batches):
        chosen = random.integers(0, 1500, args.batch_size)
        params, state, value = train_step(params, state, images[chosen], labels[chosen])
        steps += 1
    right = accuracy(params, images[1500:], labels[1500:])
    print(f"epoch {epoch}: loss {value:.3f}, accuracy {right:.3f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {steps}")
