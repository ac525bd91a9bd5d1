"""How long many clients of ``advisor ui --serve`` wait, beside connections that say nothing.

    python -m advisor.lab.speed.ui_clients [--clients N] [--silent N] [--questions N] [--cold] ...

A server is started on loopback, and its questions are asked once, which is timed; with --cold they
are not. Then the silent connections are opened, and all clients connect at once and ask one of
these questions each: the answer as the page gets it. Printed are the replies by status, the
seconds until they were read (median, 95th percentile, slowest), the processor seconds that the
server and its workers spent on these clients, and what the refused were told in Retry-After. No
client waits longer than five minutes.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final

import psutil

from advisor.lab import frame

ASKED: Final = (
    "--layers", "24", "--hidden", "2048", "--heads", "16", "--tokens", "2B", "--cloud", "lambda",
)  # fmt: skip
_LONGEST_S: Final = 300.0


async def asked(port: int, body: dict[str, Any]) -> tuple[str, float, int | None]:
    """Return a client's status, the seconds until it was read, and when to come again [s]."""
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(_LONGEST_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            text = json.dumps(body).encode()
            head = (
                f"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            )
            writer.write(head.encode() + text)
            reply = await reader.read()
            writer.close()
    except (OSError, TimeoutError) as error:
        return type(error).__name__, time.perf_counter() - begun, None
    status = reply.split(b" ", 2)[1].decode() if reply else "nothing"
    told = re.search(rb"(?i)\r\nretry-after: (\d+)", reply.partition(b"\r\n\r\n")[0])
    return status, time.perf_counter() - begun, int(told[1]) if told else None


async def played(
    server: psutil.Process, port: int, *, clients: int, silent: int, questions: int, is_cold: bool
) -> dict[str, Any]:
    """Return what the clients of a server were told, and when."""
    bodies = [{"question": {"budget": str(20 + 10 * one)}, "whole": False}
              for one in range(questions)]  # fmt: skip
    first = [] if is_cold else [await asked(port, body) for body in bodies]
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(silent)]
    before = _processor_s(server)
    found = await asyncio.gather(*(asked(port, bodies[k % questions]) for k in range(clients)))
    for _, writer in idle:
        writer.close()
    seconds = sorted(one for _, one, _ in found)
    told = [one for _, _, one in found if one is not None]
    return {
        "first_s": [one for _, one, _ in first],
        "replies": dict(Counter(status for status, _, _ in found)),
        "told_s": [min(told), max(told)] if told else [],
        "processor_s": _processor_s(server) - before,
        "median_s": statistics.median(seconds),
        "p95_s": seconds[max(int(0.95 * len(seconds)) - 1, 0)],
        "slowest_s": seconds[-1],
    }


def _processor_s(process: psutil.Process) -> float:
    tree = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in tree if one.is_running())


def main() -> None:
    given = frame.options(
        __doc__,
        {"--clients": 200, "--silent": 100, "--questions": 5, "--cold": False, "--json": False},
    )
    words = [sys.executable, "-m", "advisor.cli", "ui", "--serve", *ASKED]
    with subprocess.Popen(words, cwd=frame.ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            port = int(running.stdout.readline().strip().rstrip("/").rpartition(":")[2])
            found = asyncio.run(played(
                psutil.Process(running.pid), port, clients=given.clients, silent=given.silent,
                questions=given.questions, is_cold=given.cold,
            ))  # fmt: skip
        finally:
            running.terminate()
    if given.json:
        print(json.dumps({**found, "where": frame.load()}, indent=2))
        return
    first = ", ".join(f"{one:.2f}" for one in found["first_s"])
    print(f"first answers: {first or 'not asked'} s")
    print(f"{given.clients} clients beside {given.silent} silent connections: {found['replies']}")
    print(f"median {found['median_s']:.2f} s, p95 {found['p95_s']:.2f} s, "
          f"slowest {found['slowest_s']:.2f} s; {found['processor_s']:.1f} CPU-s")  # fmt: skip
    if found["told_s"]:
        print("the refused were told to come again in {} to {} s".format(*found["told_s"]))
    print(frame.load())


if __name__ == "__main__":
    main()
