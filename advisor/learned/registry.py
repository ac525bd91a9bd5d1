"""Names of the estimators, and models as folders that cannot run code.

A model is a folder: ``weights.npz`` (arrays only), ``model.json`` (which estimator, its settings,
scalars, the SHA-256 of every file and of itself), ``features.json`` (the columns with their units
and ranges, schema version, hash of the data), ``metrics.json`` and ``card.md``. Loading checks the
hashes, the schema and the shapes; a folder that was changed is refused. The hashes are against
accidents and half-copied folders; who can write all files can write them too, but cannot make
loading run code.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from advisor.answer import object_in
from advisor.collectors import atomic
from advisor.data import laboratory
from advisor.errors import ModelError, UsageError

if TYPE_CHECKING:
    from advisor.learned.base import RunRegressor, State
    from advisor.learned.quick import QuickModel

FORMAT: Final = 3
_T = TypeVar("_T")
# Name -> module and class.
ESTIMATORS: Final = {
    "ridge": ("advisor.learned.linear", "Ridge"),
    "poisson": ("advisor.learned.linear", "Poisson"),
    "gp": ("advisor.learned.gaussian", "GaussianProcess"),
    "forest": ("advisor.learned.trees", "Forest"),
    "boosting": ("advisor.learned.trees", "Boosting"),
    "sequence": ("advisor.lab.learned.sequence", "SequenceNetwork"),  # of the laboratory
    "stack": ("advisor.learned.stack", "Stack"),
    "guarded": ("advisor.learned.guarded", "Guarded"),
}
_ABOUT: Final = "model.json"
_FILES: Final = frozenset({"weights.npz", "features.json", "metrics.json", "card.md", _ABOUT})
_HINT: Final = "fit it again: advisor train models"


def estimator(name: str, **settings: Any) -> RunRegressor:
    """Return an unfitted estimator by name.

    Raises UsageError if there is no such estimator, or it is the laboratory's, which is not here.
    """
    if name not in ESTIMATORS:
        raise UsageError(f"no estimator named {name!r}", hint=f"one of: {', '.join(ESTIMATORS)}")
    module, kind = ESTIMATORS[name]
    made: RunRegressor = getattr(laboratory(module), kind)(**settings)
    return made


def require_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that is no model's: it goes as a whole.

    Raises ModelError for a file, or a folder with files that are none of a model's.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # Versions before kept boosted trees as ``*.ubj``.
    others = {name for name in names - _FILES if not name.endswith(".ubj")}
    is_model = not names or (_ABOUT in names and not others)
    if not is_model or (folder.exists() and not folder.is_dir()):
        found = f"{folder} holds {sorted(others or names)[0]}" if names else f"{folder} is a file"
        raise ModelError(
            f"{found}, and a model's folder is replaced as a whole",
            hint="name another folder with --out",
        )


def save(
    folder: Path, model: RunRegressor, *, features: Mapping[str, Any], metrics: Mapping[str, Any],
    card: str,
) -> None:  # fmt: skip
    """Write a fitted model as a folder, replacing an older one in one step.

    ``card``: ``card.md``: what it was fitted on, how wrong it is, where it fails.

    Raises ModelError if the folder holds what is no model's.
    """
    require_replaceable(folder)
    arrays: dict[str, Any] = {}
    learned: State = model.state()
    if model.calibration_ is not None:
        learned = {"learned": learned, "calibration": model.calibration_.state()}
    else:
        learned = {"learned": learned}
    scalars = _flatten(learned, "", arrays)
    with atomic.replacing_folder(folder) as made:
        np.savez_compressed(made / "weights.npz", **arrays)
        _dump(made / "features.json", dict(features))
        _dump(made / "metrics.json", dict(metrics))
        (made / "card.md").write_text(card, encoding="utf-8")
        about = {
            "format": FORMAT,
            "estimator": describe(model),
            "features_in": model.n_features_in_,
            "scalars": scalars,
            "sha256": {name: _sha256(made / name) for name in sorted(_FILES - {_ABOUT})},
        }
        _dump(made / "model.json", about | {"own_sha256": _own_sha256(about)})


def _steadily(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
    """Let a reader of a model's folder read again where a retraining replaced it meanwhile."""

    @functools.wraps(read)
    def again(folder: Path) -> _T:
        while True:
            now = atomic.current_folder(folder)
            seen = _inode(now)
            try:
                return read(now)
            except ModelError:
                if _inode(atomic.current_folder(folder)) == seen:
                    raise

    return again


@_steadily
def load(folder: Path) -> tuple[RunRegressor | QuickModel, dict[str, Any], dict[str, Any]]:
    """Return a saved model, its ``features.json`` and its ``metrics.json``.

    Without scikit-learn and XGBoost where the model needs neither. Raises ModelError if a file is
    missing, was changed, or is of another format.
    """
    from advisor.learned.quick import QuickModel

    about, learned = _verified(folder)
    try:
        quick = QuickModel.of(about["estimator"], learned, int(about["features_in"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{folder}: cannot be read ({error})", hint=_HINT) from error
    model = quick or _built(folder, about, learned)
    return model, _read(folder / "features.json"), _read(folder / "metrics.json")


def _built(folder: Path, about: Mapping[str, Any], learned: Mapping[str, Any]) -> RunRegressor:
    try:
        model = build(about["estimator"])
        model.n_features_in_ = int(about["features_in"])
        model.calibration_ = None
        model.restore(learned["learned"])
        if "calibration" in learned:
            from advisor.learned.intervals import Calibration

            model.calibration_ = Calibration.from_state(learned["calibration"])
    except (OSError, KeyError, TypeError, ValueError, IndexError, UsageError) as error:
        raise ModelError(f"{folder}: cannot be read ({error})", hint=_HINT) from error
    return model


def _verified(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``model.json`` and what was learned, every file as it was saved."""
    about = _description(folder)
    try:
        for name in about["sha256"]:
            _check(folder, about, name)
        arrays = _arrays(folder / "weights.npz")
        return about, _nested(about["scalars"], arrays)
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{folder}: cannot be read ({error})", hint=_HINT) from error


@_steadily
def features_of(folder: Path) -> dict[str, Any]:
    """Return ``features.json`` of a saved model alone: what it takes, and what it covers.

    Raises ModelError if the folder was changed, or is of another format.
    """
    about = _description(folder)
    try:
        _check(folder, about, "features.json")
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}: cannot be read ({error})", hint=_HINT) from error
    return _read(folder / "features.json")


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def _description(folder: Path) -> dict[str, Any]:
    """Return ``model.json``, which must be as it was saved."""
    about = _read(folder / "model.json")
    if about.get("format") != FORMAT:
        raise ModelError(f"{folder}: format {about.get('format')!r} is not {FORMAT}", hint=_HINT)
    if about.pop("own_sha256", None) != _own_sha256(about):
        raise ModelError(f"{folder / 'model.json'}: was changed since it was saved", hint=_HINT)
    return about


def _own_sha256(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _check(folder: Path, about: Mapping[str, Any], name: str) -> None:
    if Path(name).name != name or _sha256(folder / name) != about["sha256"][name]:
        raise ModelError(f"{folder / name}: was changed since it was saved", hint=_HINT)


def describe(model: RunRegressor) -> dict[str, Any]:
    """Return name and settings of an estimator, members included."""
    name = next(n for n, (_, kind) in ESTIMATORS.items() if kind == type(model).__name__)
    settings = model.get_params(deep=False)
    if "members" in settings:
        settings["members"] = [[n, describe(member)] for n, member in model._named()]
    if "member" in settings:
        settings["member"] = describe(model._named()[0][1])
    return {"name": name, "settings": settings}


def build(description: Mapping[str, Any]) -> RunRegressor:
    """Return the unfitted estimator that ``describe`` told of."""
    settings = dict(description["settings"])
    if "members" in settings:
        settings["members"] = tuple((n, build(d)) for n, d in settings["members"])
    if settings.get("member") is not None:
        settings["member"] = build(settings["member"])
    for name, value in settings.items():
        if isinstance(value, list):
            settings[name] = tuple(value)
    return estimator(str(description["name"]), **settings)


def _flatten(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Move arrays out of nested data, leaving their names behind."""
    if isinstance(value, Mapping):
        return {
            str(k): _flatten(v, f"{name}.{k}" if name else str(k), arrays)
            for k, v in value.items()
        }
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"$array": name}
    return value.item() if isinstance(value, np.generic) else value


def _nested(value: Any, arrays: Mapping[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays[value["$array"]]
    return {k: _nested(v, arrays) for k, v in value.items()}


def _arrays(path: Path) -> dict[str, Any]:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except zipfile.BadZipFile as error:
        raise ModelError(f"{path}: {error}", hint=_HINT) from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ModelError(f"{path}: {name} holds what is not a number", hint=_HINT)
    return arrays


def _read(path: Path) -> dict[str, Any]:
    return object_in(path, "", error=ModelError, hint=_HINT)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
