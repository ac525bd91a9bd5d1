"""Rounds inside scikit-learn's estimators: trees, stages, epochs; whole fits where none show."""

from __future__ import annotations

import functools
import sys

from .rounds import after, around, cores_of, limited_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .rounds import RoundCounter

_FOREST, _STAGES, _HISTOGRAM, _ADA, _PERCEPTRON, _PARTIAL = (
    "scikit-learn forest", "scikit-learn gradient boosting", "scikit-learn histogram boosting",
    "scikit-learn AdaBoost", "scikit-learn perceptron", "scikit-learn partial_fit",
)  # fmt: skip
# 'auto' means early stopping above so many samples (documentation of HistGradientBoosting).
_STOPS_EARLY_ABOVE = 10_000


def base(rounds: RoundCounter, module: Any) -> None:
    """Have every estimator's ``fit`` be a step where it has no rounds, and ``partial_fit``.

    The decorator of their methods is replaced before the estimators' modules are imported.
    """
    original = getattr(module, "_fit_context", None)
    if original is None:  # before scikit-learn 1.3
        return

    def fit_context(*args: Any, **kwargs: Any) -> Any:
        decorate = original(*args, **kwargs)

        def decorated(method: Any) -> Any:
            return _counted(rounds, method, decorate(method))

        return decorated

    functools.update_wrapper(fit_context, original)
    module._fit_context = fit_context


def _counted(rounds: RoundCounter, method: Any, decorated: Any) -> Any:
    is_partial = getattr(method, "__name__", "") == "partial_fit"

    @functools.wraps(decorated)
    def fit(*args: Any, **kwargs: Any) -> Any:
        if rounds.is_idle or rounds.is_inside:
            return decorated(*args, **kwargs)
        if is_partial and _is_called_by_library(sys._getframe(1)):
            return decorated(*args, **kwargs)
        if is_partial and not rounds.fits_running:
            loop = rounds.begin(_PARTIAL + " ", is_pass=False)  # what is inside does not count
            try:
                result = decorated(*args, **kwargs)
            finally:
                rounds.end(loop)
            rounds.done(_PARTIAL, unit="call")
            return result
        rounds.fits_running += 1
        before = rounds.finished
        try:
            result = decorated(*args, **kwargs)
        finally:
            rounds.fits_running -= 1
        if rounds.fits_running == 0 and rounds.finished == before:
            rounds.fitted()
        return result

    return fit


def _is_called_by_library(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("sklearn")


def _rows(data: Any) -> int | None:
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else (len(data) if hasattr(data, "__len__") else None)


def jobs(n_jobs: Any) -> int | None:
    """Return the cores that ``n_jobs`` allows; None for all. Unset it is joblib's default."""
    if n_jobs is None:
        from joblib.parallel import get_active_backend

        n_jobs = get_active_backend()[1]
    return cores_of(n_jobs)


def forest(rounds: RoundCounter, module: Any) -> None:
    """Count the trees of a forest."""

    def describe(self: Any, X: Any, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N803
        grown = len(getattr(self, "estimators_", ())) if self.warm_start else 0
        return _facts(self.n_estimators - grown, jobs(self.n_jobs), _rows(X))

    around(rounds, module.BaseForest, "fit", _FOREST, "tree", describe)
    after(rounds, module, "_parallel_build_trees", _FOREST)


def _facts(
    count: int | None, cores: int | None, samples: int | None, *, may_end_early: bool = False
) -> dict[str, Any]:
    return {
        "rounds": count,
        "may_end_early": may_end_early,
        "cores": cores,
        "samples": samples,
        "device": "cpu",
    }


def gradient_boosting(rounds: RoundCounter, module: Any) -> None:
    """Count the stages of gradient boosting."""
    owner = module.BaseGradientBoosting
    begins = _argument(owner._fit_stages, "begin_at_stage", 0)

    def describe(*args: Any, **kwargs: Any) -> dict[str, Any]:
        self, X = args[:2]  # noqa: N806
        left = self.n_estimators - begins(*args, **kwargs)
        stops = self.n_iter_no_change is not None
        return _facts(left, 1, _rows(X), may_end_early=stops)

    around(rounds, owner, "_fit_stages", _STAGES, "stage", describe)
    after(rounds, owner, "_fit_stage", _STAGES)


def _argument(function: Any, name: str, default: Any) -> Callable[..., Any]:
    import inspect

    signature = inspect.signature(function)

    def value(*args: Any, **kwargs: Any) -> Any:
        return signature.bind(*args, **kwargs).arguments.get(name, default)

    return value


def histogram_boosting(rounds: RoundCounter, module: Any) -> None:
    """Count the iterations of histogram boosting: as many trees each as there are classes."""
    owner, grower = module.BaseHistGradientBoosting, module.TreeGrower
    original = grower.grow
    fitting: list[Any] = []

    def describe(self: Any, X: Any, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N803
        fitting[:] = [self, 0]
        samples = _rows(X) or 0
        done = getattr(self, "n_iter_", 0) if self.warm_start else 0
        stops = self.early_stopping is True or (
            self.early_stopping == "auto" and samples > _STOPS_EARLY_ABOVE
        )
        return _facts(self.max_iter - done, limited_threads(), samples, may_end_early=stops)

    def grow(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if fitting and rounds.is_inside:
            fitting[1] += 1
            if fitting[1] % max(getattr(fitting[0], "n_trees_per_iteration_", 1), 1) == 0:
                rounds.done(_HISTOGRAM)
        return result

    around(rounds, owner, "fit", _HISTOGRAM, "iteration", describe)
    functools.update_wrapper(grow, original)
    grower.grow = grow


def ada_boost(rounds: RoundCounter, module: Any) -> None:
    """Count the estimators of AdaBoost; a perfect one ends it."""

    def describe(self: Any, X: Any, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N803
        return _facts(self.n_estimators, 1, _rows(X), may_end_early=True)

    around(rounds, module.BaseWeightBoosting, "fit", _ADA, "estimator", describe)
    for owner in (module.AdaBoostClassifier, module.AdaBoostRegressor):
        after(rounds, owner, "_boost", _ADA)


def perceptron(rounds: RoundCounter, module: Any) -> None:
    """Count the epochs of a multilayer perceptron."""

    def describe(self: Any, X: Any, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: N803
        stops = self.n_iter_no_change < self.max_iter
        return _facts(self.max_iter, limited_threads(), _rows(X), may_end_early=stops)

    owner = module.BaseMultilayerPerceptron
    around(rounds, owner, "_fit_stochastic", _PERCEPTRON, "epoch", describe)
    after(rounds, owner, "_update_no_improvement_count", _PERCEPTRON)
