"""A user's own files lie where they always lay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from advisor import data
from advisor.ask.places import user_file
from advisor.catalogue import snapshot
from advisor.collectors import atomic
from advisor.collectors.derive import store
from advisor.collectors.errors import RecordingError
from advisor.collectors.watch import benchmark
from advisor.errors import UsageError
from advisor.estimate.knowledge.learned import OWN_RUNS, Learned

FOLDERS = {
    "XDG_DATA_HOME": (atomic.data_folder, ".local/share/advisor"),
    "XDG_CONFIG_HOME": (atomic.config_folder, ".config/advisor"),
    "XDG_CACHE_HOME": (atomic.cache_folder, ".cache/advisor"),
}


@pytest.fixture(params=FOLDERS)
def base(request: pytest.FixtureRequest) -> tuple[str, Callable[[], Path], str]:
    return (request.param, *FOLDERS[request.param])


def test_folders_stand_where_the_specification_says(
    base: tuple[str, Callable[[], Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, folder, usual = base
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in (None, "", "relative/path"):
        monkeypatch.delenv(variable, raising=False)
        if said is not None:
            monkeypatch.setenv(variable, said)
        assert folder() == tmp_path / usual
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    assert folder() == tmp_path / "own" / "advisor"
    assert not list(tmp_path.iterdir())  # asking makes nothing


def test_whoever_has_no_home_gets_the_temporary_folder(
    base: tuple[str, Callable[[], Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, folder, usual = base
    monkeypatch.delenv(variable, raising=False)

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert folder() == Path(tempfile.gettempdir()) / usual


def test_every_place_hangs_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in FOLDERS:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv(store.VARIABLE, raising=False)
    own, kept, cache = (tmp_path / name / "advisor" for name in FOLDERS)
    assert (data.user_data(), data.own_models()) == (own, own / "models")
    assert store.default_run_root() == own / "runs"
    assert user_file() == kept / "advisor.toml"
    assert snapshot.config_folder() == kept
    assert snapshot.cache_folder() == cache / "catalogue"
    assert store.mirror_of("s3://bucket/runs").parent == cache / "runs"
    assert benchmark.cache_path().parent == cache


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_a_team_s_models_answer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or URL that ``ADVISOR_MODELS`` names comes before what ships."""
    url = {"folder": str(tmp_path / "team"), "file": f"file://{tmp_path}/team",
           "memory": f"memory://{tmp_path.name}"}[kind]  # fmt: skip
    files, base = url_to_fs(url)
    shipped = data.root("trained_models") / OWN_RUNS
    for path in shipped.iterdir():
        if path.is_file():
            files.makedirs(f"{base}/{OWN_RUNS}", exist_ok=True)
            files.put_file(str(path), f"{base}/{OWN_RUNS}/{path.name}")
    files.makedirs(f"{base}/{OWN_RUNS}/deep/er")
    files.pipe_file(f"{base}/{OWN_RUNS}/deep/er/file", b"no model's")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(data.MODELS, url)
    found = Learned.default()
    assert found is not None
    assert found.folder == data.own_models() / OWN_RUNS != shipped
    assert not [*(tmp_path / "cache").rglob("deep"), *(tmp_path / "cache").rglob("er")]
    if kind == "folder":
        assert data.writable_models() == tmp_path / "team"
    else:
        with pytest.raises(UsageError, match="only read"):
            data.writable_models()


def test_a_team_s_models_that_cannot_be_read_are_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(data.MODELS, "nothing://x")
    with pytest.raises(RecordingError, match="cannot open nothing://x"):
        data.own_models()
