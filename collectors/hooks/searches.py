"""Searches of hyper-parameters and cross-validations: every fit is a step, counted by joblib."""

from __future__ import annotations

import sys

from .estimators import jobs
from .replacing import replace
from .rounds import around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rounds import RoundCounter

_KIND = "scikit-learn search"


def parallel(rounds: RoundCounter, module: Any) -> None:
    """Count the tasks that a search has handed to joblib as they come back."""
    owner = module.Parallel
    call, progress = owner.__call__, owner.print_progress

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if rounds.is_inside and _is_of_search(sys._getframe(1)):
            self._advisor_done = 0
        return call(self, *args, **kwargs)

    def print_progress(self: Any) -> Any:
        done = getattr(self, "_advisor_done", None)
        if done is not None:
            self._advisor_done = self.n_completed_tasks
            rounds.done(_KIND, self.n_completed_tasks - done)
        return progress(self)

    replace(rounds.session, owner, "__call__", called)
    replace(rounds.session, owner, "print_progress", print_progress)


def _is_of_search(frame: Any) -> bool:
    """Whether a search calls, not an estimator inside it; scikit-learn has a class in between."""
    for _ in range(3):
        if frame is None:
            return False
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("sklearn.model_selection"):
            return True
        if not module.startswith(("sklearn.utils", "_advisor_hooks", "advisor.collectors")):
            return False
        frame = frame.f_back
    return False


def search(rounds: RoundCounter, module: Any) -> None:
    """See ``fit`` of every search: candidates x folds, and the fit of the best at the end."""
    owner = module.BaseSearchCV
    original = owner.fit

    def describe(self: Any, X: Any, y: Any = None, **given: Any) -> dict[str, Any]:  # noqa: N803
        candidates = _candidates(module, self)
        folds = _folds(self.cv, self.estimator, X, y, given.get("groups"))
        fits = None if candidates is None or folds is None else candidates * folds
        return {
            "rounds": None if fits is None else fits + bool(self.refit),
            "may_end_early": False,
            "cores": _cores(self.n_jobs, self.estimator),
            "device": "cpu",
        }

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        loop = rounds.begin(_KIND)
        if loop is not None:
            rounds.tell("fit", lambda: describe(self, *args, **kwargs))
        try:
            result = original(self, *args, **kwargs)
            if loop is not None and self.refit:
                rounds.done(_KIND)
            return result
        finally:
            rounds.end(loop)

    replace(rounds.session, owner, "fit", fit)


def _candidates(module: Any, search: Any) -> int | None:
    """Return how many candidates there are; None where the search decides as it goes."""
    if hasattr(search, "factor"):  # successive halving
        return None
    if hasattr(search, "param_grid"):
        return len(module.ParameterGrid(search.param_grid))
    space = getattr(search, "param_distributions", None)
    if space is None:
        return None
    spaces = [space] if isinstance(space, dict) else space
    # Out of lists alone no candidate is drawn twice (documentation of RandomizedSearchCV).
    if any(hasattr(values, "rvs") for one in spaces for values in one.values()):
        return int(search.n_iter)
    return min(int(search.n_iter), len(module.ParameterGrid(spaces)))


def _folds(cv: Any, estimator: Any, data: Any, target: Any, groups: Any) -> int | None:
    """Return how many folds there are; None where asking would use them up."""
    if cv is not None and not isinstance(cv, int) and not hasattr(cv, "get_n_splits"):
        return len(cv) if hasattr(cv, "__len__") else None
    from sklearn.base import is_classifier
    from sklearn.model_selection import check_cv

    splitter = check_cv(cv, target, classifier=is_classifier(estimator))
    return int(splitter.get_n_splits(data, target, groups))


def _cores(n_jobs: Any, estimator: Any) -> int | None:
    """Return the cores of the fits at a time times those of each; None where one is unknown.

    Estimators without ``n_jobs`` may compute with the threads of a library underneath.
    """
    while getattr(estimator, "steps", None):  # a pipeline's last
        estimator = estimator.steps[-1][1]
    if not hasattr(estimator, "n_jobs"):
        return None
    outer, inner = jobs(n_jobs), jobs(estimator.n_jobs)
    return None if outer is None or inner is None else outer * inner


def validation(rounds: RoundCounter, module: Any) -> None:
    """See cross-validations and curves; their fits are known where the folds are."""

    def describe(
        estimator: Any, X: Any, y: Any = None, *, groups: Any = None, cv: Any = None,  # noqa: N803
        n_jobs: Any = None, **given: Any,
    ) -> dict[str, Any]:  # fmt: skip
        folds = _folds(cv, estimator, X, y, groups)
        values = given.get("param_range")  # of ``validation_curve``: all in every fold
        points = 1 if values is None else len(values)
        return {
            "rounds": None if folds is None else folds * points,
            "may_end_early": False,
            "cores": _cores(n_jobs, estimator),
            "device": "cpu",
        }

    for name in ("cross_validate", "cross_val_predict", "validation_curve"):
        around(rounds, module, name, _KIND, "fit", describe)
    for name in ("learning_curve", "permutation_test_score"):  # defaults that are not known here
        around(rounds, module, name, _KIND, "fit", _unknown)


def _unknown(estimator: Any, *_: Any, n_jobs: Any = None, **__: Any) -> dict[str, Any]:
    return {"rounds": None, "may_end_early": False, "cores": _cores(n_jobs, estimator)}
