"""Print requirements that ``pyproject.toml`` declares, for environments of other versions.

``lowest``: the lowest versions of the product's and its tests' dependencies, as constraints for
pip. torch is not among them: it is installed first, in the one build for CPUs that can be had.
``without-torch``: the same dependencies as they are declared, without torch, for Pythons for
which no such build can be had.
``exports``: the tools that exports are checked with, without the product.
"""

import re
import sys
import tomllib
from pathlib import Path

TORCH = "torch"
BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def declared(pyproject: str) -> list[str]:
    """Return the requirements of the product and of its tests, torch left out."""
    project = tomllib.loads(pyproject)["project"]
    found = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [one for one in found if not one.startswith(TORCH)]


def exports(pyproject: str) -> list[str]:
    """Return the requirements of the tools that exports are checked with."""
    return list(tomllib.loads(pyproject)["project"]["optional-dependencies"]["exports"])


def lowest(pyproject: str) -> list[str]:
    """Return ``name==version`` for every requirement, which has to be ``name>=version``."""
    bounds = [(one, BOUND.fullmatch(one)) for one in declared(pyproject)]
    missing = [one for one, bound in bounds if bound is None]
    if missing:
        raise ValueError(f"no lowest version in {missing}: write name>=version")
    return sorted(f"{bound[1]}=={bound[2]}" for _, bound in bounds if bound is not None)


if __name__ == "__main__":
    text = Path(__file__).parent.with_name("pyproject.toml").read_text()
    chosen = {"lowest": lowest, "without-torch": declared, "exports": exports}[sys.argv[1]]
    sys.stdout.write("\n".join(chosen(text)) + "\n")
