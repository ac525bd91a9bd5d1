"""No file that is read can run code, and models that were changed are refused.

Pickled are only values on their way between processes of one run: joblib (loky, Dask, Ray) sends
functions and rows to workers that the user started or named. That is sending, not loading files;
``SECURITY.md`` says who may listen.
"""

from __future__ import annotations

import ast
import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.errors import ModelError
from advisor.estimate import case, completion
from advisor.estimate.knowledge import layout_model
from advisor.learned import registry
from advisor.learned.problem import ModelInputs
from advisor.learned.trained import TrainedModel
from advisor.machines import devices
from advisor.records.importers import minicloud

ROOT = Path(__file__).parents[1]
# Call -> the keyword that makes it safe; None where nothing does.
FORBIDDEN: dict[str, str | None] = {
    "pickle.load": None, "pickle.loads": None, "pickle.Unpickler": None, "cPickle.load": None,
    "_pickle.loads": None, "dill.load": None, "dill.loads": None, "cloudpickle.load": None,
    "cloudpickle.loads": None, "joblib.load": None, "shelve.open": None, "marshal.load": None,
    "marshal.loads": None, "pandas.read_pickle": None, "pd.read_pickle": None, "yaml.load": None,
    "yaml.unsafe_load": None, "skops.io.load": None, "eval": None, "exec": None,
    "torch.load": "weights_only=True",
    "np.load": "allow_pickle=False", "numpy.load": "allow_pickle=False",
    "np.savez": "no objects", "np.save": "allow_pickle=False",
}  # fmt: skip
MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal")


def unsafe(tree: ast.AST) -> list[str]:
    """Return the calls and imports that could run code of a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [f"import {a.name}" for a in node.names if a.name in MODULES]
        if isinstance(node, ast.ImportFrom):
            # Writing runs nothing: PyTorch's viewer of memory reads pickles.
            named = [f"{node.module}.{a.name}" for a in node.names if a.name != "dumps"]
            found += [f"from {n}" for n in named if n in FORBIDDEN or node.module in MODULES]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {f"{k.arg}={ast.unparse(k.value)}" for k in node.keywords}
        if name in FORBIDDEN and FORBIDDEN[name] not in keywords:
            found.append(f"line {node.lineno}: {name}")
        if name.endswith(".read_pickle") or "allow_pickle=True" in keywords:
            found.append(f"line {node.lineno}: {name}")
        if "weights_only=False" in keywords:
            found.append(f"line {node.lineno}: {name}")
    return found


def sources() -> list[Path]:
    folders = ("advisor", "lab", "collectors", "planners", "examples")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_nothing_that_is_read_can_run_code() -> None:
    found = {}
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        calls = unsafe(ast.parse(path.read_text()))
        if calls:
            found[name] = calls
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import joblib; joblib.load('x')",
        "from joblib import load\nfrom torch import load", "torch.load('x')",
        "torch.load('x', weights_only=False)", "np.load('x')", "np.load('x', allow_pickle=True)",
        "pd.read_pickle('x')", "frame.read_pickle('x')", "shelve.open('x')", "yaml.load(x)",
        "eval(text)",
    ],
)  # fmt: skip
def test_the_scan_sees_what_it_is_for(code: str) -> None:
    assert unsafe(ast.parse(code))


def test_the_scan_lets_pass_what_is_safe() -> None:
    for code in ("torch.load(x, weights_only=True)", "np.load(x, allow_pickle=False)",
                 "json.load(x)", "Catalogue.load()", "yaml.safe_load(x)"):  # fmt: skip
        assert not unsafe(ast.parse(code)), code


class _Runs:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model that ships."""
    folder = tmp_path / "runs"
    shutil.copytree(ROOT / "trained_models" / "runs", folder)
    return folder


def sign(folder: Path) -> None:
    """Write the hashes anew, as somebody would who may write all files."""
    path = folder / "model.json"
    about = json.loads(path.read_text())
    del about["own_sha256"]
    for name in about["sha256"]:
        about["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(about | {"own_sha256": registry._own_sha256(about)}))


def change_arrays(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with np.load(folder / "weights.npz", allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    change(arrays)
    np.savez_compressed(folder / "weights.npz", **arrays)


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_the_model_that_ships_is_read_and_signing_alone_keeps_it_so(model: Path) -> None:
    TrainedModel.load(model)
    sign(model)
    TrainedModel.load(model)


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "trained_models/runs").iterdir()))
def test_a_tampered_file_is_refused(model: Path, name: str) -> None:
    content = bytearray((model / name).read_bytes())
    content[len(content) // 3] ^= 4
    (model / name).write_bytes(bytes(content))
    with pytest.raises(ModelError) as caught:
        TrainedModel.load(model)
    assert "advisor train" in caught.value.hint


@pytest.mark.parametrize("value", [np.nan])
def test_weights_that_are_no_numbers_are_refused(model: Path, value: float) -> None:
    """Also with the hashes of whoever put them there."""

    def spoil(arrays: dict[str, Any]) -> None:
        name = next(n for n, a in sorted(arrays.items()) if a.dtype.kind == "f" and a.size)
        arrays[name].flat[0] = value

    change_arrays(model, spoil)
    sign(model)
    with pytest.raises(ModelError, match="not a number"):
        TrainedModel.load(model)


def test_an_array_of_objects_is_not_unpickled(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"

    def plant(arrays: dict[str, Any]) -> None:
        arrays[min(arrays)] = np.array([_Runs(trace)], dtype=object)

    change_arrays(model, plant)
    sign(model)
    with pytest.raises(ModelError):
        TrainedModel.load(model)
    assert not trace.exists()


def test_a_pickle_in_place_of_any_file_is_not_unpickled(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    planted = pickle.dumps(_Runs(trace))
    records = minicloud.read_minicloud(ROOT / "datasets" / "runs")[:1]
    unread = []
    for name in [path.name for path in model.iterdir() if path.name != "model.json"]:
        before = (model / name).read_bytes()
        (model / name).write_bytes(planted)
        sign(model)
        try:
            TrainedModel.load(model).predict(records)
            registry._built(
                model, *registry._verified(model)
            )  # trees of no weight are read here alone
            unread.append(name)
        except ModelError:
            pass
        (model / name).write_bytes(before)
    (model / "model.json").write_bytes(planted)
    with pytest.raises(ModelError):
        TrainedModel.load(model)
    assert unread == ["card.md"]
    assert not trace.exists()


def test_another_schema_is_refused(model: Path) -> None:
    change_json(model / "model.json", lambda about: about.update(format=99))
    with pytest.raises(ModelError, match="99"):
        TrainedModel.load(model)


def test_swapped_features_are_refused(model: Path) -> None:
    def swap(about: Any) -> None:
        names = about["names"]
        names[0], names[1] = names[1], names[0]

    change_json(model / "features.json", swap)
    sign(model)
    with pytest.raises(ModelError, match="other features"):
        TrainedModel.load(model)


def test_an_estimator_of_another_kind_is_refused(model: Path) -> None:
    change_json(model / "model.json", lambda about: about["estimator"].update(name="os.system"))
    sign(model)
    with pytest.raises(ModelError):
        TrainedModel.load(model)


def test_answers_that_are_no_numbers_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What neither hashes nor shapes show: trees whose leaves are no numbers."""
    trained = TrainedModel.load(model)
    records = minicloud.read_minicloud(ROOT / "datasets" / "runs")[:3]
    monkeypatch.setattr(ModelInputs, "predict_band", lambda *_: np.full((len(records), 3), np.nan))
    with pytest.raises(ModelError, match="not a number"):
        trained.predict(records)


CONSTANTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "campaign": ("parameters.json", completion.campaign_law),
    "device_model": ("parameters.json", devices.device_parameters),
    "layout_model": ("parameters.json", layout_model.load),
    "memory": ("parameters.json", lambda path: case.memory(path.parent)),
    "scaling": ("parameters.json", lambda path: case.scaling(path.parent)),
}


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("spoilt", ["NaN", "Infinity", "-1e999", '"x"', "null", "[]"])
def test_constants_that_are_no_numbers_are_refused(name: str, spoilt: str, tmp_path: Path) -> None:
    file, load = CONSTANTS[name]
    shutil.copytree(ROOT / "trained_models" / name, tmp_path / name)
    path = tmp_path / name / file
    record = json.loads(path.read_text())
    place = record.get("parameters", record.get("law", record))
    key = next(k for k, v in place.items() if isinstance(v, float))
    place[key] = "@"
    path.write_text(json.dumps(record).replace('"@"', spoilt))
    load(ROOT / "trained_models" / name / file)
    with pytest.raises(ModelError):
        load(path)
