# zoo: steps=400 args="--rounds 400" minute=yes needs=lightgbm
"""LightGBM: a binary classification with a validation set, one thread."""

import argparse
import os

import lightgbm as lgb
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=200)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()

random = np.random.default_rng(0)
x = random.normal(size=(120_000, 40)).astype("float32")
y = (x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + random.normal(size=len(x)) > 0).astype(int)
train = lgb.Dataset(x[:100_000], y[:100_000])
valid = lgb.Dataset(x[100_000:], y[100_000:], reference=train)
model = lgb.train(
    {
        "objective": "binary",
        "metric": "auc",
        "num_leaves": 63,
        "learning_rate": 0.05,
        "num_threads": args.threads,
        "seed": 0,
        "verbosity": -1,
    },
    train,
    num_boost_round=args.rounds,
    valid_sets=[valid],
    callbacks=[lgb.log_evaluation(100)],
)
if os.environ.get("ZOO") == "1":
    print(f"steps: {model.num_trees()}")
