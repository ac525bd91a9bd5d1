"""A notebook's code cells as a script that plain Python runs, line for line.

What only IPython understands is left out as a comment: magics (``%matplotlib``), shell lines
(``!pip install``), help (``model?``) and cells in other languages (``%%bash``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from advisor.collectors.errors import RecordingError

# Cells that are Python all the same, once their first line is gone.
_PYTHON_CELLS: Final = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "py"})
_ASSIGNED: Final = re.compile(r"^(\s*[A-Za-z_][\w, .\[\]]*=\s*)[!%]")
_HEAD: Final = "def display(*things):\n    print(*things)\n\n\n"


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
