"""Machines apart: one network namespace a node, joined by a bridge, each link with a rate.

The rate is a token bucket (``tc tbf``) at both ends of every node's link: outbound inside the
namespace, inbound at the bridge's side. No latency is added: this kernel has no ``netem``.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from advisor.collectors.errors import RecordingError
from advisor.collectors.watch.tcp import by_interface

BURST_BYTES: Final = 64 * 1024  # one GSO segment: the least that lets the bucket pass full packets
QUEUE_MS: Final = 200
INTERFACE: Final = "eth0"
_PREFIX: Final = "ac"  # then process id, "c", number: the kernel allows names 15 characters
_SERIAL: Final = itertools.count()
_CLONE_NEWNET: Final = 0x40000000


class Nodes:
    """Namespaces of a small cluster; node ``i`` has address ``10.77.0.<i + 1>``.

    ``label``: at most 11 characters, unique on the machine: begins every name.
    """

    def __init__(self, label: str, count: int) -> None:
        self.label = label
        self.count = count
        self.rate_bit_per_s: float | None = None

    def address(self, node: int) -> str:
        """Return the IP address of a node."""
        return f"10.77.0.{node + 1}"

    def namespace(self, node: int) -> str:
        """Return the name of a node's namespace."""
        return f"{self.label}n{node}"

    def enter(self, node: int) -> None:
        """Move the calling (single-threaded) process into a node's namespace."""
        _enter(f"/run/netns/{self.namespace(node)}")

    @contextlib.contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Have what the calling (single-threaded) process starts or opens be in a node's."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.enter(node)
            yield
        finally:
            _enter(f"/proc/self/fd/{home}")
            os.close(home)

    def shape(self, rate_bit_per_s: float | None) -> None:
        """Limit every node's link to a rate each way, or free it."""
        if rate_bit_per_s == self.rate_bit_per_s:
            return
        for node in range(self.count):
            inside = ["ip", "netns", "exec", self.namespace(node), "tc", "qdisc"]
            for tc, device in ((inside, INTERFACE), (["tc", "qdisc"], self._outer(node))):
                if rate_bit_per_s is None:
                    _run(*tc, "del", "dev", device, "root")
                else:
                    _run(
                        *tc, "replace", "dev", device, "root", "tbf",
                        "rate", f"{round(rate_bit_per_s)}bit", "burst", f"{BURST_BYTES}b",
                        "latency", f"{QUEUE_MS}ms",
                    )  # fmt: skip
        self.rate_bit_per_s = rate_bit_per_s

    def _outer(self, node: int) -> str:
        return f"{self.label}v{node}"

    def _build(self) -> None:
        bridge = f"{self.label}br"
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for node in range(self.count):
            space, outer = self.namespace(node), self._outer(node)
            _run("ip", "netns", "add", space)
            _run(
                "ip", "link", "add", outer, "type", "veth",
                "peer", "name", INTERFACE, "netns", space,
            )  # fmt: skip
            _run("ip", "link", "set", outer, "master", bridge, "up")
            address = f"{self.address(node)}/24"
            _run("ip", "-n", space, "addr", "add", address, "dev", INTERFACE)
            _run("ip", "-n", space, "link", "set", INTERFACE, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def _raze(self) -> None:
        for node in range(self.count):
            _run("ip", "netns", "del", self.namespace(node), check=False)
        _run("ip", "link", "del", f"{self.label}br", check=False)


@contextlib.contextmanager
def cluster_of_namespaces(count: int) -> Iterator[Nodes]:
    """Make namespaces, links and a bridge for the length of a block.

    Raises RecordingError: ``ip`` or ``tc`` is missing, or it is not allowed.
    """
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise RecordingError(f"{tool} is not installed", hint="install iproute2")
    _sweep()
    nodes = Nodes(f"{_PREFIX}{os.getpid()}c{next(_SERIAL)}", count)
    try:
        nodes._build()
        yield nodes
    finally:
        nodes._raze()


def _sweep() -> None:
    for path in Path("/run/netns").glob(f"{_PREFIX}*c*n*"):
        pid = path.name.removeprefix(_PREFIX).partition("c")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _run("ip", "netns", "del", path.name, check=False)
            _run("ip", "link", "del", f"{path.name.partition('n')[0]}br", check=False)


def can_make_nodes() -> bool:
    """Return whether namespaces with limited links can be made here."""
    if os.geteuid() != 0:
        return False
    try:
        with cluster_of_namespaces(1) as nodes:
            nodes.shape(1e9)
    except RecordingError:
        return False
    return True


def counters(pid: int) -> tuple[int, int]:
    """Return the bytes received and sent in a process's namespace, loopback left out."""
    table = by_interface(Path(f"/proc/{pid}/net/dev").read_bytes())
    others = [counts for name, counts in table.items() if name != b"lo"]
    return sum(received for received, _ in others), sum(sent for _, sent in others)


def _enter(path: str) -> None:
    """Move the calling process into the network namespace that ``path`` opens."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RecordingError(
            f"{' '.join(command)}: {done.stderr.strip()}",
            hint="network limits need root; without them distributed runs are skipped",
        )
