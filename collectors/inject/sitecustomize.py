"""Python imports this at start-up because the profiler put its folder on PYTHONPATH.

It loads the hooks if this process belongs to a recording, then gives way to the sitecustomize
that it hides, if there is one. Python 3.8; imports only what every interpreter has loaded.
"""

import os
import sys


def _boot() -> None:
    """Load the hooks package by path, under a name that cannot clash; start where they belong."""
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.join(os.path.dirname(here), "hooks")
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    spec = spec_from_file_location(
        "_advisor_hooks", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = module_from_spec(spec)
    sys.modules["_advisor_hooks"] = package
    spec.loader.exec_module(package)
    from _advisor_hooks import lineage

    if not lineage.belongs():
        lineage.leave()
        return
    from _advisor_hooks import boot

    boot.start(os.environ[lineage.RUN])


def _chain() -> None:
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ADVISOR_RUN_DIR"):
    try:
        _boot()
    except Exception as error:  # the script comes first
        if os.environ.get("ADVISOR_DEBUG"):
            raise
        sys.stderr.write("[advisor] the hooks did not come up: %r\n" % (error,))
_chain()
