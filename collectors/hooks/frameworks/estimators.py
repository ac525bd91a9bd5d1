"""Rounds of boosting, of scikit-learn's estimators, and of searches over them.

LightGBM and XGBoost are seen by their boosters' updates, CatBoost by its callback; estimators by
their trees, stages and epochs, or as whole fits; searches by every fit that joblib hands back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .rounds import RoundCounter, after, around, cores_of, limited_threads, replace

_FOREST, _STAGES, _HISTOGRAM, _ADA, _PERCEPTRON, _PARTIAL = (
    "scikit-learn forest", "scikit-learn gradient boosting", "scikit-learn histogram boosting",
    "scikit-learn AdaBoost", "scikit-learn perceptron", "scikit-learn partial_fit",
)  # fmt: skip
_SEARCH = "scikit-learn search"
# 'auto' means early stopping above so many samples (documentation of HistGradientBoosting).
_STOPS_EARLY_ABOVE = 10_000


def lightgbm_booster(rounds: RoundCounter, module: Any) -> None:
    """Count every update of a booster."""
    after(rounds, module.Booster, "update", "LightGBM")


def lightgbm_train(rounds: RoundCounter, module: Any) -> None:
    """See ``train`` and ``cv``, also through the estimators."""

    def describe(
        params: Any, train_set: Any, num_boost_round: int = 100, *_: Any, **given: Any
    ) -> dict[str, Any]:
        def of(name: str, default: Any) -> Any:
            names = module._ConfigAliases.get(name)
            return next((params[one] for one in names if params.get(one) is not None), default)

        stops = of("early_stopping_round", None) or any(
            "early" in type(one).__name__.lower() for one in given.get("callbacks") or ()
        )
        rows = _rows_of_shape(getattr(train_set, "data", None))
        cores, device = _lightgbm_cores(of("num_threads", None)), str(of("device_type", "cpu"))
        count = int(of("num_iterations", num_boost_round))
        return _facts(count, cores, rows, may_end_early=bool(stops), device=device)

    _train_and_cv(rounds, module, "LightGBM", describe, folds=5)


def _lightgbm_cores(threads: Any) -> int | None:
    """Return the cores that are allowed; an estimator's own word, for it fills in this machine's.

    Unset, an estimator takes all cores, whatever the environment says of OpenMP.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "lightgbm.sklearn" and frame.f_code.co_name == "fit":
            n_jobs = getattr(frame.f_locals.get("self"), "n_jobs", None)
            return n_jobs if isinstance(n_jobs, int) and n_jobs > 0 else None
        frame = frame.f_back
    return cores_of(threads)


def xgboost_booster(rounds: RoundCounter, module: Any) -> None:
    """Count every update of a booster."""
    after(rounds, module.Booster, "update", "XGBoost")


def xgboost_train(rounds: RoundCounter, module: Any) -> None:
    """See ``train`` and ``cv``, also through the estimators."""

    def describe(
        params: Any, dtrain: Any, num_boost_round: int = 10, *_: Any, **given: Any
    ) -> dict[str, Any]:
        options = dict(params)
        stops = given.get("early_stopping_rounds") or any(
            "Early" in type(one).__name__ for one in given.get("callbacks") or ()
        )
        threads = options.get("nthread", options.get("n_jobs"))
        is_gpu = str(options.get("tree_method", "")).startswith("gpu")
        device = "cuda" if is_gpu else str(options.get("device") or "cpu")
        count, cores, rows = int(num_boost_round), cores_of(threads), dtrain.num_row()
        return _facts(count, cores, rows, may_end_early=bool(stops), device=device)

    _train_and_cv(rounds, module, "XGBoost", describe, folds=3)


def _train_and_cv(
    rounds: RoundCounter, module: Any, name: str, describe: Callable[..., Any], *, folds: int
) -> None:
    """See ``train``, and ``cv``, which trains once a fold."""

    def describe_folds(*args: Any, **given: Any) -> dict[str, Any]:
        facts = describe(*args[:3], **given)
        number = _given_folds(given.get("folds"), given.get("nfold", folds))
        return dict(facts, rounds=None if number is None else facts["rounds"] * number)

    around(rounds, module, "train", name, "round", describe)
    around(rounds, module, "cv", name, "round", describe_folds)


def _given_folds(folds: Any, number: int) -> int | None:
    """Return how many folds there are; None where only using them up would tell."""
    if folds is None:
        return int(number)
    if hasattr(folds, "get_n_splits"):
        return int(folds.get_n_splits())
    return len(folds) if hasattr(folds, "__len__") else None


def _rows_of_shape(data: Any) -> int | None:
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else None


class _Iterations:
    """The user's callbacks of a CatBoost fit, with ours in front.

    CatBoost's C++ loop calls it after every iteration; an exception would become an error of
    CatBoost's: asked to stop, it ends the training, and the stop goes on from outside the loop.
    """

    def __init__(self, rounds: RoundCounter, others: Any) -> None:
        self._rounds = rounds
        self._others = others
        self.stop: SystemExit | None = None

    def after_iteration(self, info: Any) -> bool:
        """Count the iteration; return whether to go on."""
        try:
            self._rounds.done("CatBoost")
        except SystemExit as stop:
            self.stop = stop
            return False
        return self._others is None or bool(self._others.after_iteration(info))


def catboost(rounds: RoundCounter, module: Any) -> None:
    """Count iterations through CatBoost's own callback, which it has on processors only."""
    original = module._CatBoostBase._train

    def train(
        self: Any, train_pool: Any, test_pool: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        loop = rounds.begin("CatBoost")
        if loop is None or params.get("task_type") == "GPU":
            rounds.end(loop)
            return original(self, train_pool, test_pool, params, *args, **kwargs)
        rounds.tell("iteration", lambda: _catboost_facts(train_pool, test_pool, params))
        ours = _Iterations(rounds, params.get("callbacks"))
        try:
            result = original(
                self, train_pool, test_pool, dict(params, callbacks=ours), *args, **kwargs
            )
        finally:
            rounds.end(loop)
        if ours.stop is not None:
            raise ours.stop
        return result

    replace(rounds.session, module._CatBoostBase, "_train", train)


def _catboost_facts(train_pool: Any, test_pool: Any, params: dict[str, Any]) -> dict[str, Any]:
    has_test = test_pool is not None and bool(getattr(test_pool, "num_row", lambda: 1)())
    detects = any(params.get(name) for name in ("od_type", "od_pval", "od_wait"))
    count, cores = int(params.get("iterations") or 1000), cores_of(params.get("thread_count"))
    return _facts(count, cores, train_pool.num_row(), may_end_early=bool(has_test and detects))


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
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if is_partial and caller.startswith("sklearn"):
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
    count: int | None, cores: int | None, samples: int | None = None, *,
    may_end_early: bool = False, device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """Return what is told of a loop: its rounds, None where nobody knows, and what they use."""
    told = {"rounds": count, "may_end_early": may_end_early, "cores": cores, "device": device}
    return told if samples is None else dict(told, samples=samples)


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
            rounds.done(_SEARCH, self.n_completed_tasks - done)
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

    def describe(self: Any, X: Any, y: Any = None, **given: Any) -> dict[str, Any]:  # noqa: N803
        candidates = _candidates(module, self)
        folds = _folds(self.cv, self.estimator, X, y, given.get("groups"))
        fits = None if candidates is None or folds is None else candidates * folds
        count = None if fits is None else fits + bool(self.refit)
        return _facts(count, _cores(self.n_jobs, self.estimator))

    owner = module.BaseSearchCV
    around(rounds, owner, "fit", _SEARCH, "fit", describe, lambda search: bool(search.refit))


def _candidates(module: Any, search: Any) -> int | None:
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
        return _facts(None if folds is None else folds * points, _cores(n_jobs, estimator))

    for name in ("cross_validate", "cross_val_predict", "validation_curve"):
        around(rounds, module, name, _SEARCH, "fit", describe)
    for name in ("learning_curve", "permutation_test_score"):  # defaults that are not known here
        around(rounds, module, name, _SEARCH, "fit", _unknown)


def _unknown(estimator: Any, *_: Any, n_jobs: Any = None, **__: Any) -> dict[str, Any]:
    return _facts(None, _cores(n_jobs, estimator))
