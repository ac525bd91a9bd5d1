# zoo: steps=900 args="--epochs 10" minute=yes needs=keras,tensorflow,sklearn
"""Keras on TensorFlow: digits by a small convolutional network, with a validation split."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
keras.utils.set_random_seed(0)

images, labels = load_digits(return_X_y=True)
images = np.kron(images.reshape(-1, 8, 8) / 16.0, np.ones((1, 2, 2)))[..., None]
images = np.concatenate([images, images])[:3200].astype("float32")
labels = np.concatenate([labels, labels])[:3200]

model = keras.Sequential(
    [
        layers.Input((16, 16, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class Count(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


count = Count()
history = model.fit(
    images, labels, batch_size=args.batch_size, epochs=args.epochs, validation_split=0.1,
    verbose=2, callbacks=[count] if os.environ.get("ZOO") == "1" else [],
)  # fmt: skip
print(f"accuracy {history.history['val_accuracy'][-1]:.3f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {count.steps}")
