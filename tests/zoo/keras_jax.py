# zoo: steps=800 args="--epochs 8" minute=yes needs=keras,jax
"""Keras on JAX: a recurrent network that adds numbers, fed by a generator of known length."""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
keras.utils.set_random_seed(0)


class Sums(keras.utils.PyDataset):
    """Pairs of numbers as sequences, and whether their sum is above one."""

    def __init__(self, batches, batch, **options):
        super().__init__(**options)
        self.batches, self.batch = batches, batch

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        x = random.random((self.batch, 24, 2), dtype="float32")
        return x, (x[:, 3, 0] + x[:, 17, 1] > 1.0).astype("int32")


inputs = layers.Input((24, 2))
hidden = layers.GRU(48, return_sequences=True)(inputs)
hidden = layers.GRU(48)(hidden)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
model.compile(keras.optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(Sums(100, 64), epochs=args.epochs, verbose=2)
if os.environ.get("ZOO") == "1":
    print(f"steps: {int(model.optimizer.iterations)}")
