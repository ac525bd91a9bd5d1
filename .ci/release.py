"""Make a release, or try to: ``python .ci/release.py 0.2.0``.

In a copy of the commit the version becomes 0.2.0 in the one place where it stands, pyproject.toml,
the changelog's [Unreleased] becomes a section of that version and day, sdist and wheel are built
and checked, and the wheel is installed into a fresh environment in which ``advisor --help``,
``--version`` and a question must work. Nothing of the checkout is changed; ``--write`` changes the
two files there as well, once all of that has worked, and says which git commands remain.

``--tagged`` builds what is there, which must be of that version already; ``--section`` only
prints the changelog's section. ``--no-deps`` takes the dependencies from the running environment.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_STATED = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_HEADING = "## [Unreleased]"


class ReleaseError(Exception):
    """The release cannot be made; the message says why."""


def version_of(pyproject: str) -> str:
    """Return the version that a pyproject.toml states."""
    found = _STATED.findall(pyproject)
    if len(found) != 1:
        raise ReleaseError(f"pyproject.toml states {len(found)} versions")
    return str(found[0])


def with_version(pyproject: str, version: str) -> str:
    """Return a pyproject.toml with another version, which must be a later one."""
    old = version_of(pyproject)
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"cannot read {version!r} as a version: use MAJOR.MINOR.PATCH")
    if _order(version) <= _order(old):
        raise ReleaseError(f"{version} is not later than {old}")
    return _STATED.sub(f'version = "{version}"', pyproject)


def _order(version: str) -> tuple[tuple[int, ...], tuple[str, int]]:
    numbers, pre = re.fullmatch(r"([\d.]+?)((?:a|b|rc)\d+)?", version).groups()  # type: ignore[union-attr]
    kind = re.match(r"([a-z]+)(\d+)", pre) if pre else None
    return tuple(int(n) for n in numbers.split(".")), (
        (kind[1], int(kind[2])) if kind else ("z", 0)
    )


def with_section(changelog: str, version: str, day: date) -> str:
    """Return a changelog whose [Unreleased] has become a section, with a new empty one above."""
    if changelog.count(f"\n{_HEADING}\n") != 1:
        raise ReleaseError(f"CHANGELOG.md has no one heading {_HEADING}")
    if f"\n## [{version}]" in changelog:
        raise ReleaseError(f"CHANGELOG.md has a section {version} already")
    if not section(changelog, "Unreleased"):
        raise ReleaseError("CHANGELOG.md says nothing under [Unreleased]")
    return changelog.replace(
        f"\n{_HEADING}\n", f"\n{_HEADING}\n\n## [{version}] - {day.isoformat()}\n"
    )


def section(changelog: str, name: str) -> str:
    """Return what a changelog says under a version, or under ``Unreleased``."""
    found = re.search(
        rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## \[|\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    return found[1].strip() if found else ""


def copied(target: Path) -> Path:
    """Return a folder with the files of the commit, links as links: a clean clone."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    return target


def built(source: Path, out: Path) -> list[Path]:
    """Build sdist and wheel, check them, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    _python("-m", "build", "--no-isolation", "--outdir", str(out), cwd=source)
    made = sorted(out.glob("*.tar.gz")) + sorted(out.glob("*.whl"))
    if len(made) != 2:
        raise ReleaseError(f"expected an sdist and a wheel, found {[p.name for p in made]}")
    if shutil.which("twine") or _has("twine"):
        _python("-m", "twine", "check", "--strict", *map(str, made), cwd=source)
    else:
        sys.stderr.write("note: twine is not installed, the description is not checked\n")
    return made


def tried(wheel: Path, version: str, folder: Path, *, has_dependencies: bool) -> None:
    """Install a wheel into a fresh environment, and run what a user runs first."""
    if has_dependencies:
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    else:
        borrowing(folder, wheel)
    asked = ["recommend", "--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "2B"]
    for arguments, expected in ((["--help"], "recommend"), (["--version"], version),
                                (asked, "best value")):  # fmt: skip
        done = subprocess.run(
            [str(folder / "bin" / "advisor"), *arguments],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or expected not in done.stdout:
            raise ReleaseError(f"advisor {arguments[0]} fails: {done.stdout}{done.stderr}")


def borrowing(folder: Path, built: Path) -> None:
    """Install a wheel, an sdist or a tree; what it needs is lent by the running environment.

    Nothing is fetched, and only paths are lent: another installation of ours stays unseen.
    """
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "lent.pth").write_text("\n".join(ours) + "\n")
    _python(
        "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet",
        "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", str(built),
    )  # fmt: skip


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def _python(*arguments: str, cwd: Path | None = None) -> None:
    subprocess.run([sys.executable, *arguments], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def _require_committed() -> None:
    done = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    if done.stdout.strip():
        raise ReleaseError("there are changes that are not committed: a release is of a commit")


def release(asked: argparse.Namespace) -> list[Path]:
    """Make what was asked for; return the files that were built."""
    if asked.write:
        _require_committed()
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        source = copied(Path(name) / "source")
        files = {name: (source / name).read_text() for name in ("pyproject.toml", "CHANGELOG.md")}
        if asked.tagged:
            if version_of(files["pyproject.toml"]) != asked.version:
                raise ReleaseError(f"pyproject.toml is not of version {asked.version}")
            if not section(files["CHANGELOG.md"], asked.version):
                raise ReleaseError(f"CHANGELOG.md has no section {asked.version}")
        else:
            day = date.fromisoformat(asked.day) if asked.day else datetime.now(UTC).date()
            files["pyproject.toml"] = with_version(files["pyproject.toml"], asked.version)
            files["CHANGELOG.md"] = with_section(files["CHANGELOG.md"], asked.version, day)
        for file, text in files.items():
            (source / file).write_text(text)
        made = built(source, Path(asked.out or Path(name) / "dist"))
        tried(made[1], asked.version, Path(name) / "fresh", has_dependencies=not asked.no_deps)
    if asked.write:
        for file, text in files.items():
            (ROOT / file).write_text(text)
        sys.stderr.write(
            f"written: pyproject.toml, CHANGELOG.md; now: git commit -am 'release {asked.version}'"
            f" && git tag v{asked.version}\n"
        )
    return made


def main() -> int:
    """Read the command line; an error is one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("version")
    parser.add_argument("--day", default="", help="YYYY-MM-DD; today (UTC) by default")
    parser.add_argument("--out", default="", help="folder that keeps what was built")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tagged", action="store_true")
    parser.add_argument("--section", action="store_true")
    parser.add_argument("--no-deps", action="store_true")
    asked = parser.parse_args()
    try:
        if asked.section:
            sys.stdout.write(section((ROOT / "CHANGELOG.md").read_text(), asked.version) + "\n")
            return 0
        made = release(asked)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write("".join(f"works: {path.name}\n" for path in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
