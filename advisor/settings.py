"""Files of settings: the project's, in the working folder, and the user's own.

``advisor.toml``, or ``[tool.advisor]`` in ``pyproject.toml``, and ``advisor.toml`` in the user's
configuration folder hold answers under the names of the flags (``advisor.question``), where runs
are kept (``runs_folder``), and a table of its own options for each verb: ``[simulate.spot]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.collectors.user_folders import config_folder
from advisor.errors import UsageError

# Where a project's answers are looked for, the first that is there.
PROJECT_FILES: Final = ("advisor.toml", "pyproject.toml")
USER_FILE: Final = "advisor.toml"
RUNS_FOLDER: Final = "runs_folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A file of settings that is there and says something."""

    path: Path
    answers: dict[str, Any]
    runs_folder: str | None = None  # a folder, or a URL
    # tables of the verbs' own options, by the verb's name
    verbs: dict[str, Any] = field(default_factory=dict)


def settings_files(folder: Path) -> Iterator[SettingsFile]:
    """Yield the user's file and the project's in ``folder``, the stronger one last.

    Raises UsageError if a file cannot be read.
    """
    yield from _read(user_file())
    for name in PROJECT_FILES:
        found = list(_read(folder / name))
        if found:
            yield found[0]
            return


def user_file() -> Path:
    """Return where the user's own settings stand, whether they are there or not."""
    return config_folder() / USER_FILE


def _read(path: Path) -> Iterator[SettingsFile]:
    if not path.is_file():
        return
    try:
        content = bounded.read_toml(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path}: {error}", hint="correct the file, or move it away"
        ) from error
    if path.name == "pyproject.toml":
        content = content.get("tool", {}).get("advisor", {})
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: cannot read tool.advisor as a table", hint="write [tool.advisor]"
        )
    verbs = {name: value for name, value in content.items() if isinstance(value, dict)}
    answers = {name: value for name, value in content.items() if name not in verbs}
    runs = answers.pop(RUNS_FOLDER, None)
    if runs is not None and not (isinstance(runs, str) and runs.strip()):
        raise UsageError(
            f"{path}: {RUNS_FOLDER}: cannot read {runs!r} as a folder", hint="give a path or a URL"
        )
    if answers or runs or verbs:
        folder = _placed(runs, path.parent)
        yield SettingsFile(path=path, answers=answers, runs_folder=folder, verbs=verbs)


def _placed(runs: str | None, beside: Path) -> str | None:
    """Return a folder as seen from the working folder; a file's own are relative to it."""
    if runs is None or "://" in runs:
        return runs
    return str(beside / Path(runs).expanduser())
