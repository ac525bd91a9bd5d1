# zoo: steps=300 args="--trees 300" minute=yes needs=sklearn
"""scikit-learn: a random forest on all cores, after scaling and a principal component analysis."""

import argparse
import os

from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int, default=150)
args = parser.parse_args()

x, y = make_classification(20_000, 60, n_informative=20, random_state=0)
x = PCA(30, random_state=0).fit_transform(StandardScaler().fit_transform(x))
train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0)
model = RandomForestClassifier(args.trees, n_jobs=-1, random_state=0)
model.fit(train_x, train_y)
print(f"accuracy {model.score(test_x, test_y):.3f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {len(model.estimators_)}")
