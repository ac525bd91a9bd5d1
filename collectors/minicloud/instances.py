"""Machines with limits that stand for instance types, at a nominal price.

Price of one machine, SYNTHETIC: price_usd_per_h = BASE + PER_CORE x cores + PER_GBIT x Gbit/s.
No provider's figure: the coefficients only have the order of magnitude of small cloud machines,
and a fixed part, so that neither the smallest nor the largest machine is always the cheapest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from advisor.collectors import bounded
from advisor.collectors.errors import RecordingError

NOMINAL_BASE_USD_PER_H: Final = 0.005
NOMINAL_CORE_USD_PER_H: Final = 0.04
NOMINAL_GBIT_USD_PER_H: Final = 0.01
MIB: Final = 2**20

LayoutKind = Literal["single", "parameter-server", "allreduce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniInstance:
    """A limited share of this machine, named for its limit.

    Attributes
    ----------
    quota : float or None
        Cores' worth of time that the cgroup grants; None: all of the pinned cores. [cores]
    memory_headroom_bytes : int or None
        Data memory it may add to the freshly started process; None: no limit. [bytes]
    """

    name: str
    cores: int = 1
    quota: float | None = None
    threads: int = 1
    memory_headroom_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.cores < 1 or self.threads < 1 or not 0 < self.granted_cores <= self.cores:
            raise ValueError(f"impossible limits in {self}")

    @property
    def granted_cores(self) -> float:
        """Cores' worth of time that it may use [cores]."""
        return float(self.cores) if self.quota is None else self.quota


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniLayout:
    """How a job is spread over machines.

    Attributes
    ----------
    kind : LayoutKind
        ``"parameter-server"``: a master that holds the parameters, and workers that compute;
        ``"allreduce"``: workers only, DistributedDataParallel, the first is the chief.
    rate_bit_per_s : float or None
        Every machine's link, each way; None where there is none. [bit/s]
    """

    kind: LayoutKind = "single"
    workers: int = 1
    rate_bit_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or (self.kind == "single") != (self.workers == 1):
            raise ValueError(f"impossible layout {self}")

    @property
    def nodes(self) -> int:
        """Machines in use."""
        return self.workers + (self.kind == "parameter-server")

    @property
    def name(self) -> str:
        """A short name for keys and tables."""
        if self.kind == "single":
            return "single"
        rate = "free" if self.rate_bit_per_s is None else f"{self.rate_bit_per_s / 1e6:g}mbit"
        return f"{'ps' if self.kind == 'parameter-server' else 'ddp'}{self.workers}-{rate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniPrices:
    """What machines that look like a limited share cost: given from outside, by shape.

    Attributes
    ----------
    by_shape : mapping of str to (float, str)
        ``shape_of`` -> price of one machine [USD/h], and whose price it is.
    """

    by_shape: Mapping[str, tuple[float, str]]

    @classmethod
    def read(cls, path: Path) -> MiniPrices:
        """Read the prices of a collection, ``prices.json``.

        Raises
        ------
        RecordingError
            If the file is not of that form.
        """
        try:
            shapes = bounded.read_json(path)["shapes"]
            return cls(
                by_shape={k: (float(v["usd_per_h"]), str(v["source"])) for k, v in shapes.items()}
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise RecordingError(
                f"{path} holds no prices of a collection: {error}",
                hint="remove it: advisor collect writes it anew",
            ) from error

    def of(self, instance: MiniInstance, layout: MiniLayout) -> tuple[float, str]:
        """Return the price of one machine [USD/h] and its source; SYNTHETIC where none is."""
        nominal = nominal_price_usd_per_h(instance, layout), "synthetic"
        return self.by_shape.get(shape_of(instance, layout), nominal)


def shape_of(instance: MiniInstance, layout: MiniLayout) -> str:
    """Return what a machine's price goes by: its cores and its link."""
    rate = 0.0 if layout.kind == "single" else layout.rate_bit_per_s or 0.0
    return shape_name(instance.granted_cores, rate)


def shape_name(cores: float, rate_bit_per_s: float) -> str:
    """Return the name of a shape.

    Examples
    --------
    >>> shape_name(0.5, 3e8)
    '0.5 cores, 300 Mbit/s'
    """
    return f"{cores:g} cores, {rate_bit_per_s / 1e6:g} Mbit/s"


def nominal_price_usd_per_h(instance: MiniInstance, layout: MiniLayout) -> float:
    """Return the SYNTHETIC price of one machine of the layout [USD/h]."""
    gbit_per_s = (layout.rate_bit_per_s or 0.0) / 1e9
    return (
        NOMINAL_BASE_USD_PER_H
        + NOMINAL_CORE_USD_PER_H * instance.granted_cores
        + NOMINAL_GBIT_USD_PER_H * gbit_per_s
    )


ANCHOR: Final = MiniInstance(name="core-1")
QUARTER: Final = MiniInstance(name="quota-0.25core", quota=0.25)
HALF: Final = MiniInstance(name="quota-0.5core", quota=0.5)
THREE_QUARTERS: Final = MiniInstance(name="quota-0.75core", quota=0.75)
ONE_BY_TWO: Final = MiniInstance(name="quota-1core-2threads", cores=2, quota=1.0, threads=2)
ONE_AND_A_HALF: Final = MiniInstance(name="quota-1.5core", cores=2, quota=1.5, threads=2)
TWO: Final = MiniInstance(name="cores-2", cores=2, threads=2)
SCARCE_MEMORY: Final = MiniInstance(
    name="quota-0.5core-memory-96mib", quota=0.5, memory_headroom_bytes=96 * MIB
)
SMALL_MEMORY: Final = MiniInstance(
    name="quota-0.5core-memory-32mib", quota=0.5, memory_headroom_bytes=32 * MIB
)
