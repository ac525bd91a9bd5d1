# zoo: steps=600 args="--iterations 600" minute=yes needs=catboost
"""CatBoost: numbers and categories, all cores."""

import argparse
import os

import numpy as np
from catboost import CatBoostClassifier, Pool

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=300)
args = parser.parse_args()

random = np.random.default_rng(0)
numbers = random.normal(size=(40_000, 20))
kinds = random.integers(0, 12, size=(40_000, 3))
y = (numbers[:, 0] + 0.3 * (kinds[:, 0] % 4) + random.normal(size=len(numbers)) > 0.5).astype(int)
rows = [[*line, *map(str, kind)] for line, kind in zip(numbers.tolist(), kinds.tolist())]
train = Pool(rows, y, cat_features=[20, 21, 22])
model = CatBoostClassifier(
    iterations=args.iterations, depth=6, learning_rate=0.05, random_seed=0, verbose=200,
    allow_writing_files=False,
)  # fmt: skip
model.fit(train)
if os.environ.get("ZOO") == "1":
    print(f"steps: {model.tree_count_}")
