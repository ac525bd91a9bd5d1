"""Boosting rounds: LightGBM and XGBoost by their boosters' updates, CatBoost by its callback."""

from __future__ import annotations

import sys

from .replacing import replace
from .rounds import after, around, cores_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rounds import RoundCounter


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
        return {
            "rounds": int(of("num_iterations", num_boost_round)),
            "may_end_early": bool(stops),
            "cores": _lightgbm_cores(of("num_threads", None)),
            "samples": _rows(getattr(train_set, "data", None)),
            "device": str(of("device_type", "cpu")),
        }

    def describe_folds(params: Any, train_set: Any, *args: Any, **given: Any) -> dict[str, Any]:
        facts = describe(params, train_set, *args[:1], **given)
        return _times(facts, _folds(given.get("folds"), given.get("nfold", 5)))

    around(rounds, module, "train", "LightGBM", "round", describe)
    around(rounds, module, "cv", "LightGBM", "round", describe_folds)


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
        return {
            "rounds": int(num_boost_round),
            "may_end_early": bool(stops),
            "cores": cores_of(threads),
            "samples": dtrain.num_row(),
            "device": "cuda" if is_gpu else str(options.get("device") or "cpu"),
        }

    def describe_folds(params: Any, dtrain: Any, *args: Any, **given: Any) -> dict[str, Any]:
        facts = describe(params, dtrain, *args[:1], **given)
        return _times(facts, _folds(given.get("folds"), given.get("nfold", 3)))

    around(rounds, module, "train", "XGBoost", "round", describe)
    around(rounds, module, "cv", "XGBoost", "round", describe_folds)


def _times(facts: dict[str, Any], folds: int | None) -> dict[str, Any]:
    """Return the facts of a cross-validation: it updates one booster a fold in every round."""
    facts["rounds"] = None if folds is None else facts["rounds"] * folds
    return facts


def _folds(folds: Any, number: int) -> int | None:
    """Return how many folds there are; None where only using them up would tell."""
    if folds is None:
        return int(number)
    if hasattr(folds, "get_n_splits"):
        return int(folds.get_n_splits())
    return len(folds) if hasattr(folds, "__len__") else None


def _rows(data: Any) -> int | None:
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
    return {
        "rounds": int(params.get("iterations") or 1000),
        "may_end_early": bool(has_test and detects),
        "cores": cores_of(params.get("thread_count")),
        "samples": train_pool.num_row(),
        "device": "cpu",
    }
