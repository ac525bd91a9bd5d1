# zoo: steps=600 args="--trees 200" minute=yes needs=xgboost,sklearn
"""XGBoost: three folds by hand, an estimator each."""

import argparse
import os

import numpy as np
from sklearn.datasets import make_regression
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from xgboost import XGBRegressor

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int, default=100)
parser.add_argument("--folds", type=int, default=3)
args = parser.parse_args()

x, y = make_regression(60_000, 40, n_informative=20, noise=5.0, random_state=0)
folds = list(KFold(args.folds, shuffle=True, random_state=0).split(x))
errors, steps = [], 0
for train, test in folds:
    model = XGBRegressor(n_estimators=args.trees, max_depth=7, learning_rate=0.1, n_jobs=1)
    model.fit(x[train], y[train])
    errors.append(mean_squared_error(y[test], model.predict(x[test])))
    steps += model.get_booster().num_boosted_rounds()
print(f"mean squared error {np.mean(errors):.1f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {steps}")
