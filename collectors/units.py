"""Durations and sizes as a person reads them."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> duration_text(0.0123), duration_text(2.5), duration_text(4000)
    ('12.3 ms', '2.50 s', '1.1 h')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds:.2f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def bytes_text(size: float) -> str:
    """Return a size in binary units.

    >>> bytes_text(75_000), bytes_text(800 * 2**20), bytes_text(3 * 2**30)
    ('73 KiB', '800 MiB', '3.0 GiB')
    """
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
