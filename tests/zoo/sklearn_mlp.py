# zoo: steps=120 args="--epochs 120" minute=yes needs=sklearn
"""scikit-learn: a multilayer perceptron for a fixed number of epochs."""

import argparse
import os

from sklearn.datasets import make_classification
from sklearn.neural_network import MLPClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
args = parser.parse_args()

x, y = make_classification(10_000, 60, n_informative=30, n_classes=4, random_state=0)
model = MLPClassifier(
    (128,), max_iter=args.epochs, n_iter_no_change=args.epochs, batch_size=128,
    random_state=0,
)  # fmt: skip
model.fit(x, y)
print(f"accuracy {model.score(x, y):.3f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {model.n_iter_}")
