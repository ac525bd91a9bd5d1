"""Boosted trees on scikit-learn's handwritten digits, without torch; reaches about 97 %.

Profiled, such a script shows its use of cores, memory and disk; it has no steps to see, unless it
says so itself (``advisor.step()``).

python examples/digits_boosting.py --rounds 200
"""

from __future__ import annotations

import argparse

import xgboost
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5, help="repetitions with another seed")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Fit a random forest and boosted trees, and report their accuracy on a held-out fifth."""
    args = arguments()
    images, labels = load_digits(return_X_y=True)
    for seed in range(args.epochs):
        x_train, x_test, y_train, y_test = train_test_split(
            images, labels, test_size=0.2, random_state=seed
        )
        forest = RandomForestClassifier(200, n_jobs=args.jobs, random_state=seed)
        forest.fit(x_train, y_train)
        trees = xgboost.XGBClassifier(
            n_estimators=args.rounds, max_depth=args.depth, n_jobs=args.jobs, random_state=seed
        )
        trees.fit(x_train, y_train)
        print(
            f"seed {seed}: forest {forest.score(x_test, y_test):.4f}, "
            f"boosting {trees.score(x_test, y_test):.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
