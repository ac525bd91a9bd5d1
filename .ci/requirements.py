"""Print requirements that ``pyproject.toml`` declares, for environments of other versions.

``lowest``: the lowest versions of the product's and its tests' dependencies, as constraints for
pip. torch is not among them: it is installed first, in the one build for CPUs that can be had.
``without-torch``: the same dependencies as they are declared, without torch, for Pythons for
which no such build can be had.
``exports``: the tools that exports are checked with, without the product; ``launchers``: those of
training scripts, which come after them, whatever versions of others they want.
``locked``: the version of every package that the product, its tests, its checks and its
documentation need, as the running environment has them: what ``make lock`` writes.
"""

import re
import sys
import tomllib
from importlib import metadata
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


def launchers(pyproject: str) -> list[str]:
    """Return the requirements of the launchers that exported files call."""
    return list(tomllib.loads(pyproject)["project"]["optional-dependencies"]["launchers"])


def lowest(pyproject: str) -> list[str]:
    """Return ``name==version`` for every requirement, which has to be ``name>=version``."""
    bounds = [(one, BOUND.fullmatch(one)) for one in declared(pyproject)]
    missing = [one for one, bound in bounds if bound is None]
    if missing:
        raise ValueError(f"no lowest version in {missing}: write name>=version")
    return sorted(f"{bound[1]}=={bound[2]}" for _, bound in bounds if bound is not None)


def locked(pyproject: str) -> list[str]:
    """Return ``name==version`` of everything that the extras for developers bring along.

    torch and what its builds for NVIDIA bring are left out: the Makefile names torch's build.
    """
    from packaging.requirements import Requirement

    extras = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    waiting = [*declared(pyproject), *extras["lint"], *extras["docs"]]
    versions: dict[str, str] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        wanted = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        key = (name, tuple(sorted(wanted.extras)))
        if key in seen or name.startswith((TORCH, "nvidia-")):
            continue
        seen.add(key)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise ValueError(f"{name} is not installed: run make lock") from error
        versions[name] = found.version
        for one in found.requires or []:
            marker = Requirement(one).marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *wanted.extras)):
                waiting.append(one)
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


if __name__ == "__main__":
    text = Path(__file__).parent.with_name("pyproject.toml").read_text()
    every = {"without-torch": declared}
    every |= {one.__name__: one for one in (lowest, exports, launchers, locked)}
    chosen = every[sys.argv[1]]
    sys.stdout.write("\n".join(chosen(text)) + "\n")
