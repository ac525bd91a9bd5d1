"""A notebook's code cells as a script that plain Python runs, line for line.

What only IPython understands is left out as a comment: magics (``%matplotlib``), shell lines
(``!pip install``), help (``model?``) and cells in other languages (``%%bash``).

Notebooks hold tokens (``%env``, ``!curl -H``), so the script lies in a folder of its own outside
the run's, which nobody else can read and which goes with the end of the recording.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic
from advisor.collectors.errors import RecordingError

# Cells that are Python all the same, once their first line is gone.
_PYTHON_CELLS: Final = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "py"})
_ASSIGNED: Final = re.compile(r"^(\s*[A-Za-z_][\w, .\[\]]*=\s*)[!%]")
_FOLDERS: Final = "advisor-notebook-"  # and the pid of the recording's process
_ENDING: Final = ".ipynb.py"  # no module's name: it hides none from the script
_LONGEST: Final = 48  # characters of the notebook's name: 255 bytes at most
_ABANDONED_S: Final = 86400.0  # a script that outlives its recording may read its source again
_HEAD: Final = "def display(*things):\n    print(*things)\n\n\n"


def private_code(path: Path) -> Path:
    """Write a notebook's script where only its owner finds it, and return where.

    What killed recordings left there is removed.

    Raises RecordingError if the file is no notebook in Python. Raises OSError if there is no room.
    """
    import tempfile  # not in the profiler's own process

    text = notebook_script(path)
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        with suppress(OSError, ValueError):
            if _is_abandoned(folder):
                for script in folder.glob(f"*{_ENDING}"):
                    remove_code(script)
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDERS}{os.getpid()}-"))  # for its owner alone
    script = folder / f"{path.stem[:_LONGEST]}{_ENDING}"
    atomic.write_text(script, text, mode=0o600)
    return script


def remove_code(script: Path) -> None:
    """Remove what ``private_code`` wrote; what else is in its folder is somebody's own."""
    with suppress(OSError):
        script.unlink(missing_ok=True)
        script.parent.rmdir()


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder's recording ended long ago without removing it."""
    found = folder.lstat()
    maker = int(folder.name.removeprefix(_FOLDERS).partition("-")[0])
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < _ABANDONED_S:
        return False
    try:
        os.kill(maker, 0)
    except ProcessLookupError:
        return not folder.is_symlink()
    return False


def notebook_script(path: Path) -> str:
    """Return the script of a Jupyter notebook.

    Raises RecordingError if the file is no notebook, or its language is another one.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = [_source(one) for one in notebook["cells"] if one["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"{path} cannot be read as a notebook: {error!r}",
            hint="open it in Jupyter and save it again, or export it: jupyter nbconvert --to "
            f"script {path}",
        ) from error
    if language.lower() != "python":
        raise RecordingError(
            f"{path} is a notebook in {language}", hint="only Python's can be profiled"
        )
    return _HEAD + "\n\n".join(map(cell_script, cells)) + "\n"


def _source(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def cell_script(source: str) -> str:
    r"""Return a cell as Python.

    >>> cell_script("%matplotlib inline\nfor x in y:\n    !ls\nfiles = !ls")
    'pass  # %matplotlib inline\nfor x in y:\n    pass  # !ls\nfiles = []  # !ls'
    >>> cell_script("%%bash\nls"), cell_script("%%time\nfit()")
    ('# %%bash\n# ls', '# %%time\nfit()')
    """
    lines = source.split("\n")
    if lines[0].startswith("%%"):
        if lines[0][2:].split(" ")[0] not in _PYTHON_CELLS:
            return "\n".join(f"# {line}" for line in lines)
        lines[0] = f"# {lines[0]}"
    return "\n".join(map(_line, lines))


def _line(line: str) -> str:
    bare = line.lstrip()
    indent = line[: len(line) - len(bare)]
    if bare.startswith(("%", "!", "?")) or (bare.endswith("?") and "#" not in bare):
        return f"{indent}pass  # {bare}"
    found = _ASSIGNED.match(line)
    return line if found is None else f"{found[1]}[]  # {line[found.end() - 1 :]}"
