# zoo: steps=73 args="--folds 6" minute=yes needs=sklearn
"""scikit-learn: a grid search over a pipeline, two fits at a time."""

import argparse
import os

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--folds", type=int, default=3)
parser.add_argument("--jobs", type=int, default=2)
args = parser.parse_args()

if __name__ == "__main__":
    x, y = make_classification(2500, 24, n_informative=10, random_state=0)
    pipeline = make_pipeline(StandardScaler(), RandomForestClassifier(30, random_state=0))
    grid = {
        "randomforestclassifier__max_features": [3, 6],
        "randomforestclassifier__min_samples_leaf": [1, 4, 16],
        "randomforestclassifier__criterion": ["gini", "entropy"],
    }
    search = GridSearchCV(pipeline, grid, cv=args.folds, n_jobs=args.jobs)
    search.fit(x, y)
    print(f"{search.best_score_:.3f} {search.best_params_}")
    if os.environ.get("ZOO") == "1":
        print(f"steps: {len(search.cv_results_['params']) * search.n_splits_ + 1}")
