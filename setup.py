"""What pyproject.toml cannot say: packages are found, and an earlier build feeds nothing."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# The folders at the root are the architecture; installed, they live under advisor.*
HOMES = {
    "advisor": "advisor",
    "advisor.collectors": "collectors",
    "advisor.lab": "lab",
    "advisor.planners": "planners",
}
DATA = {"advisor.datasets": "datasets", "advisor.trained_models": "trained_models"}


def packages() -> list[str]:
    """Return every folder that holds Python, with or without an ``__init__.py``, and the data.

    setuptools' own discovery takes names from one root, and reads links as folders.
    """
    found = set(DATA)
    for home, folder in HOMES.items():
        inside = {file.parent.relative_to(folder).parts for file in Path(folder).rglob("*.py")}
        found |= {
            ".".join((home, *parts)) for parts in inside if all(map(str.isidentifier, parts))
        }
    return sorted(found)


class CleanBuild(build_py):
    """The build of the modules, in an empty folder: files that are gone are not packed again."""

    def run(self) -> None:
        """Remove what an earlier build left, then build."""
        if not self.editable_mode:
            base = Path(self.get_finalized_command("build").build_base)
            for stale in (Path(self.build_lib), *base.glob("bdist.*")):
                shutil.rmtree(stale, ignore_errors=True)
        super().run()


setup(packages=packages(), package_dir=HOMES | DATA, cmdclass={"build_py": CleanBuild})
