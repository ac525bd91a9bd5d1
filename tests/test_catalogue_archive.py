"""An archive is unpacked into its folder and nowhere else, or refused."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from advisor.catalogue.upkeep import given
from advisor.catalogue.upkeep.given import is_archive, unpack
from advisor.errors import CatalogueError

EVIL = ["../evil.csv", "a/../../evil.csv", "/tmp/evil.csv", "..\\evil.csv", "C:\\evil.csv"]


@pytest.mark.parametrize("name", EVIL)
def test_a_zip_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("good.csv", "1")
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name
        file.writestr(entry, "2")
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    with pytest.raises(CatalogueError, match="leads out of its folder"):
        unpack(path, inside)
    found = {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*.csv")}
    assert found <= {"deep/inside/good.csv"}
    assert not Path("/tmp/evil.csv").exists()


@pytest.mark.parametrize("name", EVIL)
def test_a_tar_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        file.addfile(entry, io.BytesIO(b"1"))
    with pytest.raises(CatalogueError, match="leads out of its folder"):
        unpack(path, tmp_path / "inside")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("prices.csv")
        entry.type = kind
        entry.linkname = "/etc/passwd"
        file.addfile(entry)
    with pytest.raises(CatalogueError, match="not a plain file"):
        unpack(path, tmp_path / "inside")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        entry = zipfile.ZipInfo("prices.csv")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(CatalogueError, match="not a plain file"):
        unpack(path, tmp_path / "inside")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "MAX_BYTES", 10 << 20)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.csv", bytes(6 << 20))
        file.writestr("b.csv", bytes(6 << 20))
    with pytest.raises(CatalogueError, match="unpacks to more than"):
        unpack(path, tmp_path / "inside")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "MAX_FILES", 3)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        for n in range(4):
            file.writestr(f"{n}.csv", "1")
    with pytest.raises(CatalogueError, match="more than 3 files"):
        unpack(path, tmp_path / "inside")


def test_a_damaged_archive_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.csv", "x,y\n" * 10_000)
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)
    with pytest.raises(CatalogueError, match="cannot be unpacked"):
        unpack(path, tmp_path / "inside")


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
def test_a_good_archive_gives_its_files(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    body = b"x,y\n1,2\n"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("raw/lambda/vms.csv", body)
    else:
        with tarfile.open(path, "w:gz") as packed:
            entry = tarfile.TarInfo("raw/lambda/vms.csv")
            entry.size = len(body)
            packed.addfile(entry, io.BytesIO(body))
    assert is_archive(path)
    unpack(path, tmp_path / "inside")
    assert (tmp_path / "inside" / "raw" / "lambda" / "vms.csv").read_bytes() == body
