"""Signals: passed on to others, and those that a recording waits for."""

from __future__ import annotations

import os
import select
import signal
from typing import Final

_WATCHED: Final = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SI_KERNEL: Final = 0x80  # a signal from the terminal: the whole foreground group has it already


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone or somebody else's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


class SignalWait:
    """The signals that end a recording, and that of a child that ended; one for the process.

    No signal interrupts anything but the sleep in ``wait``. Where the system has ``sigtimedwait``
    signals are blocked and waited for. macOS has not: there handlers that do nothing have a pipe
    written to, which is what is waited for.
    """

    def __init__(self) -> None:
        self._pipe = -1
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
            return
        self._pipe, write = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(write, False)
        for number in _WATCHED:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait(self, pause_s: float) -> tuple[int, bool] | None:
        """Return the next signal, and whether the whole foreground group has it: a terminal's.

        None if none comes.
        """
        if self._pipe < 0:
            info = signal.sigtimedwait(_WATCHED, pause_s)
            # A debugger that attaches ends the wait with no signal.
            if info is None or not info.si_signo:
                return None
            return info.si_signo, info.si_code == _SI_KERNEL
        if not select.select([self._pipe], [], [], pause_s)[0]:
            return None
        (number,) = os.read(self._pipe, 1)
        # Who sent it is not told: an interrupt at a terminal is taken for the terminal's.
        return number, number == signal.SIGINT and os.isatty(0)
