"""The profiler's own process: starts the command, watches it, ends it, and leaves a recording.

It is lean on purpose (standard library only, nothing of the advisor beside the collectors) and
stands beside the script, never inside it. It is the parent of the command and a subreaper, so
that daemonised descendants stay in its tree; the script lives on if the profiler is killed.

Signals are blocked and waited for, which is the loop's sleep as well: nothing interrupts a write.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Final

from advisor.collectors.derive import (
    install_hint,
    recording,
    recording_problem,
    summary_record,
    summary_text,
)
from advisor.collectors.format import (
    PROFILER_FILE,
    Appender,
    Ended,
    machine,
    store_key,
    stored_command,
    sync_file,
)
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.format import start_ticks
from advisor.collectors.hooks.redaction import redacted
from advisor.collectors.run.child import (
    NOT_STARTED,
    Child,
    accepts_hooks,
    allow_more_files,
    become_subreaper,
)
from advisor.collectors.run.ending import Escalation, RecordingLimits
from advisor.collectors.run.local_ranks import Ranks
from advisor.collectors.run.monitor import Monitor
from advisor.collectors.run.notebooks import remove_code
from advisor.collectors.run.progress import PERIOD_S, PREFIX, Live, columns, write
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.run.signals import SignalWait
from advisor.collectors.watch import (
    Groups,
    Processes,
    ProcessTree,
    Sampler,
    TouchedMemory,
    is_python,
)


class Orders:
    """What every hooked process of a run is to do, and from which of its steps on.

    The small file is written as a whole before the script starts, and rewritten in place: later
    writes need no space on a disk that has become full.
    """

    def __init__(self, run: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(run / fmt.CONTROL_FILE, flags, 0o600)
        self._order = 0, 0
        self.beat()

    def give(self, action: int, from_step: int) -> None:
        """Order an action (``format.ACTION_*``) from a step on; 0 means never."""
        self._order = action, from_step
        self.beat()

    def beat(self) -> None:
        """Say that the profiler lives."""
        try:
            os.pwrite(self._fd, fmt.CONTROL_PAYLOAD.pack(*self._order, time.monotonic_ns()), 0)
        except OSError:  # the hooks keep the last order, and let go after a minute of silence
            return


_SAME_INTERRUPT_S: Final = 2.0  # what our own parent passes on within is the terminal's again

_CHECK_S: Final = 1.0
_SYNC_S: Final = 5.0
_FAST_S: Final = 60.0  # after that a reading a second is enough
_SLOW_INTERVAL_S: Final = 1.0
_HOOKS_UP_S: Final = 1.0  # what runs for less is no training
_FAREWELL_S: Final = 0.5  # for helpers that end with the command


class Agent:
    """One recording in progress."""

    def __init__(self, plan: RecordingPlan) -> None:
        self._plan = plan
        self._run = Path(plan.run)
        self._log = Appender(self._run / PROFILER_FILE)
        self._orders = Orders(self._run)
        self._monitor = Monitor(self._run, plan.options.get("half_width_fraction"))
        self._tree = _tree_of(plan)
        self._sampler = Sampler(self._tree, Groups.of(plan.attached or "self"))
        self._touched = TouchedMemory() if plan.working_set else None
        self._child = self._child_of(plan)
        self._limits = RecordingLimits(plan, self._monitor)
        self._live = Live(plan, self._tree, self._monitor, self._sampler.memory)
        self._escalation = Escalation(self._tree, self._monitor, plan.patience_s)
        self._start_ns = time.monotonic_ns()
        self._status = self._reason = ""  # of an end that was asked for
        self._interrupted_at = 0.0
        self._has_seen_enough = False  # of a process that is somebody else's: it is let be
        self._is_detached = False
        self._warned: set[str] = set()
        self._has_unhooked = False  # a Python process in which no hooks can come up
        self._first_seen: dict[int, float] = {}

    def run(self) -> int:
        """Record to the end and return the exit code."""
        become_subreaper()
        self._signals = SignalWait()
        self._write_header()
        if self._plan.limit_steps is not None:  # the hooks count for themselves, exactly
            self._orders.give(self._action, self._plan.limit_steps)
        if self._plan.attached is None and not self._start_command():
            return NOT_STARTED
        for enter in self._child.networks:
            self._sampler.watch_network(enter)
        allow_more_files()  # after the command has begun with the limit it was given
        self._watch()
        self._finish()
        self._summarise()
        if self._status == "stopped" and not self._is_detached:
            return 0
        return self._child.shell_code or 0

    def _child_of(self, plan: RecordingPlan) -> Child:
        # Looked before the recording begins: the moment is no part of the script's start.
        is_beside_others = plan.attached is None and self._sampler.others_compute()
        kind = Ranks if plan.workers > 1 else Child
        return kind(plan, is_beside_others=is_beside_others)

    @property
    def _action(self) -> int:
        return fmt.ACTION_DETACH if self._plan.continues else fmt.ACTION_STOP

    def _start_command(self) -> bool:
        try:
            self._child.spawn()
        except OSError as error:
            self._child.close()
            reason = redacted(f"{self._plan.command[0]!r} cannot be started: {error.strerror}")
            end = {"status": "failed", "stop_reason": reason, "exit_code": NOT_STARTED}
            self._log.write_json(fmt.END, {**end, "t_ns": time.monotonic_ns()})
            hint = "a script without #! needs its interpreter: advisor profile -- sh SCRIPT"
            if error.errno == errno.E2BIG:
                hint = "the system limits a command's length: put the arguments into a file"
            write(2, f"error: {reason}\nhint: {hint}\n")
            return False
        return True

    def _write_header(self) -> None:
        header = {
            "schema_version": fmt.SCHEMA_VERSION,
            "role": "profiler",
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "machine": machine(),
            "command": stored_command(_said(self._plan), store_key(Path(self._plan.run).parent)),
            "command_kept": "list",  # by the allow-list
            "cwd": redacted(_folder_here()),
            "started_at": self._plan.started_at,
            "t_ns": self._start_ns,
            "host": self._plan.host,
            "options": self._plan.options,
        }
        self._log.write_json(fmt.HEADER, header)

    def _watch(self) -> None:
        due = dict.fromkeys(("reading", "check", "sync", "show"), 0.0)
        while self._child.code is None:
            now = time.monotonic()
            elapsed = now - self._start_ns / 1e9
            if now >= due["reading"]:
                self._read()
                is_slow = elapsed > _FAST_S or self._is_detached
                due["reading"] = now + max(self._plan.interval_s, _SLOW_INTERVAL_S * is_slow)
            if now >= due["check"]:
                self._check(elapsed)
                due["check"] = now + _CHECK_S
            if now >= due["sync"]:
                self._sync()
                due["sync"] = now + _SYNC_S
            if now >= due["show"]:
                self._live.say(elapsed, self._until(elapsed))
                due["show"] = now + (self._plan.progress_s or PERIOD_S)
            if self._has_ended_watching():
                return
            self._wait(max(0.0, min(due.values()) - time.monotonic()))

    def _read(self) -> None:
        """Take a reading; one that fails is said and costs no other."""
        try:
            self._log.write(fmt.READING, self._sampler.read())
            for process in self._sampler.of_processes():
                self._log.write(fmt.PROCESS, process)
            if self._touched is not None:
                has_begun = self._monitor.first_step_ns() > 0
                window = self._touched.look(self._tree.processes, is_running=has_begun)
                if window is not None:
                    self._log.write(fmt.TOUCHED, window)
                if self._touched.failure:
                    self._warn(self._touched.failure)
        except Exception as error:
            self._warn(f"a reading failed: {error!r}")

    def _has_ended_watching(self) -> bool:
        """Whether an attached process is gone or has been watched enough; children are reaped."""
        if self._plan.attached is None:
            return False
        return self._has_seen_enough or not self._tree.processes

    def _wait(self, pause_s: float) -> None:
        received = self._signals.wait(pause_s)
        if received is None:
            return
        number, is_shared = received
        if number == signal.SIGCHLD:
            self._child.reap()
            return
        self._status = "interrupted"
        self._reason = f"{signal.Signals(number).name} received"
        now = time.monotonic()
        if self._plan.attached is not None:
            self._has_seen_enough = True
        elif is_shared:
            self._interrupted_at = now
        elif now - self._interrupted_at > _SAME_INTERRUPT_S:
            self._child.signal(number)

    def _check(self, elapsed: float) -> None:
        self._monitor.update()
        self._orders.beat()
        if self._escalation.has_begun:
            self._escalation.go_on()
            return
        self._look_for_unhooked(elapsed)
        reason = self._limits.reason(elapsed)
        if reason and not self._status:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        self._status, self._reason = "stopped", reason
        self._sampler.look_at_everything()  # sockets and files that are about to be closed
        self._read()
        if self._plan.attached is not None:
            self._has_seen_enough = True
            return
        self._monitor.update()  # the order may be a step some way ahead of all: count anew
        limit = self._plan.limit_steps
        from_step = 1
        if limit is None or self._monitor.steps() < limit:
            from_step = self._monitor.common_last_step()
            self._orders.give(self._action, from_step)
        self._is_detached = self._plan.continues
        if not self._plan.continues:
            self._escalation.begin(from_step)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._log.write_json(fmt.FACT, {"fact": "warning", "text": redacted(text)})

    def _look_for_unhooked(self, elapsed: float) -> None:
        if self._plan.attached is not None or self._has_unhooked:
            return
        hooked = self._monitor.hooked_pids
        for pid in list(self._tree.processes):
            since = self._first_seen.setdefault(pid, elapsed)
            if elapsed - since >= _HOOKS_UP_S and pid not in hooked:
                self._has_unhooked |= is_python(pid) and not accepts_hooks(pid)

    def _until(self, elapsed: float) -> str:
        if self._is_detached:
            return f"let go, as {self._reason}"
        return f"ends, as {self._reason}" if self._reason else self._limits.until(elapsed)

    def _sync(self) -> None:
        """Bring everybody's records to the disk: only a power cut could still lose them."""
        self._log.sync()
        for path in self._monitor.paths:
            sync_file(path)

    def _finish(self) -> None:
        self._monitor.update()
        if not self._status and self._monitor.has_obeyed:
            limit = self._plan.limit_steps
            reason = "the rehearsal is over" if limit is None else f"{limit} steps"
            self._status, self._reason = "stopped", reason
        status, reason = (self._status, self._reason) if self._status else self._child.ending
        if self._plan.attached is None and (left := self._survivors()):
            self._warn(f"{left} processes outlived the command")
        self._child.close()
        if self._has_unhooked and not self._monitor.steps():
            self._warn(
                "a Python process ran without hooks (python -I, -E, -S or a cleaned "
                "environment): resources only"
            )
        usage = self._tree.read()
        end = {
            "status": status,
            "stop_reason": reason,
            "exit_code": self._child.shell_code,
            "max_rss_bytes": self._child.max_rss_bytes,
            "cpu_ns": max(self._child.cpu_ns, usage.cpu_ns),
            "machine_cpu_ns": self._sampler.machine_cpu_ns(),
            "t_ns": time.monotonic_ns(),
        }
        self._log.write_json(fmt.END, end)
        self._sync()
        self._log.close()

    def _survivors(self) -> int:
        """Return how many processes still run when those that end with the command have ended."""
        deadline = time.monotonic() + _FAREWELL_S
        while True:
            self._child.reap()
            left = sum(self._tree.is_alive(pid) for pid in self._tree.processes)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)

    def _summarise(self) -> None:
        """Say what was learned: read back from the files, like every later reader."""
        if self._plan.summary == "none":
            return
        seen = recording(self._run)
        if self._plan.summary == "json":
            write(1, json.dumps(summary_record(seen)) + "\n")
        else:
            write(2, summary_text(seen, columns(), PREFIX))
        if (problem := recording_problem(seen)) is not None:
            kind = "note" if seen.exit_code == 0 else "error"
            write(2, f"{kind}: {problem[0]}\nhint: {self._missing(seen.ended) or problem[1]}\n")

    def _missing(self, ended: Ended | None) -> str:
        """Return what to do if the Python that was chosen lacks what the script imports."""
        chosen = self._plan.options.get("interpreter")
        if not chosen or not self._child.code or (ended and ended.cause != "package"):
            return ""
        from advisor.collectors.run.interpreter import missing_modules

        missing = missing_modules(chosen["path"], Path(self._plan.command[1]))
        if ended is not None and ended.what not in missing:
            missing = [ended.what]
        return install_hint(chosen["path"], missing, chosen["reason"]) if missing else ""


def _tree_of(plan: RecordingPlan) -> Processes:
    if plan.reader == "psutil":  # not imported where /proc is read: starting takes 20 ms
        from advisor.collectors.watch import PortableTree

        return PortableTree(plan.attached)
    return ProcessTree(plan.attached)


def _said(plan: RecordingPlan) -> tuple[str, ...]:
    """Return the command as the user knows it: a notebook, where its code is run."""
    return (plan.command[0], plan.notebook, *plan.command[2:]) if plan.notebook else plan.command


def _folder_here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been deleted: the command may not mind
        return ""


def main(plan_fd: int) -> int:
    """Record according to the plan that a descriptor reads."""
    plan = RecordingPlan.from_file(plan_fd)
    try:
        return Agent(plan).run()
    finally:
        if plan.notebook:
            remove_code(Path(plan.command[1]))
