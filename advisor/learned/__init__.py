"""Learned predictors: one estimator a file, each with scikit-learn's contract."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
