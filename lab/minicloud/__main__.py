"""Collect labelled runs: ``python -m advisor.lab.minicloud --out FOLDER``.

The environment variables that fix every library's thread pool at one thread must be set before
NumPy and torch are loaded: this program sets them and starts itself again where they are not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

_ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
) | {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # namespaces have no name service, and gloo says so


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="advisor collect", description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="folder of the journal")
    options.add_argument("--limit", type=int, help="runs to make at most")
    options.add_argument("--hours", type=float, help="begin no run after this time")
    options.add_argument("--only", action="append", help="pattern of run keys, e.g. 'full/mlp-*'")
    options.add_argument("--plan", choices=("seconds", "minutes"), default="seconds")
    options.add_argument("--prices", type=Path, help="JSON of prices by shape")
    options.add_argument("--cap-s", type=float, help="cut a run short after this")
    options.add_argument("--attempts", type=int, default=3, help="of a run that stays noisy")
    options.add_argument("--nice", type=int, default=0, help="give way to other programs")
    return options


def main(arguments: list[str] | None = None) -> int:
    if any(os.environ.get(name) != value for name, value in _ENVIRONMENT.items()):
        program = [sys.executable, "-m", "advisor.lab.minicloud"]
        given = sys.argv[1:] if arguments is None else arguments
        os.execve(sys.executable, [*program, *given], os.environ | _ENVIRONMENT)
    options = parser().parse_args(arguments)
    os.nice(options.nice)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell's "&" has them ignored
        signal.signal(number, signal.default_int_handler)

    from advisor.collectors.errors import RecordingError, explain
    from advisor.lab.minicloud.collect import CollectionProgress, collect, describe
    from advisor.lab.minicloud.plan import SCALES, MiniPrices
    from advisor.records.collected import Journal

    def tell(progress: CollectionProgress) -> None:
        sys.stderr.write(describe(progress) + "\n")
        sys.stderr.flush()

    journal = Journal(options.out / "runs.jsonl")
    prices = None
    try:
        if options.prices is not None:
            prices = MiniPrices.read(options.prices)
        with journal.alone():
            collect(
                journal, limit=options.limit, hours=options.hours, only=options.only or ["*"],
                cap_s=options.cap_s, attempts=options.attempts, tell=tell,
                scale=SCALES[options.plan], prices=prices,
            )  # fmt: skip
    except (RecordingError, OSError, MemoryError) as error:
        found = error if isinstance(error, RecordingError) else explain(error)
        if found is None:
            raise
        sys.stderr.write(f"error: {found}\nhint: {found.hint}\n")
        return found.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from here\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
