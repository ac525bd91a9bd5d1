"""The machine that collected runs were made on: ``host.json`` beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.collectors.recording import Host, HostBenchmark
from advisor.errors import RunError

FILE: Final = "host.json"


def host_of(path: Path) -> Host | None:
    """Return the host of a folder (or file) of collected runs; None where it is not described.

    Raises RunError if the file is there and cannot be read.
    """
    file = (path if path.is_dir() else path.parent) / FILE
    if not file.is_file():
        return None
    try:
        told: dict[str, Any] = bounded.read_json(file)
        benchmark = HostBenchmark(**told.pop("benchmark"))
        return Host(**told, gpus=(), benchmark=benchmark)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{file}: does not describe a machine ({error})", hint="see docs/dataset.md"
        ) from error
