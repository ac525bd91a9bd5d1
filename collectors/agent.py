"""The profiler's own process: starts the command, watches it, ends it, and leaves a recording.

It is lean on purpose (standard library only, nothing of the advisor beside the collectors) and
stands beside the script, never inside it. It is the parent of the command and a subreaper, so
that daemonised descendants stay in its tree; the script lives on if the profiler is killed.

Signals are blocked and waited for, which is the loop's sleep as well: nothing interrupts a write.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Final

from advisor.collectors import summary
from advisor.collectors.cgroups import Groups
from advisor.collectors.child import Child, become_subreaper, send_signal
from advisor.collectors.derive import recording, rule_of
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.writer import start_ticks
from advisor.collectors.monitor import Monitor, Progress, duration_text
from advisor.collectors.orders import Orders
from advisor.collectors.plan import Plan
from advisor.collectors.processes import ProcessTree, is_python, parent_of
from advisor.collectors.profiler_log import PROFILER_FILE
from advisor.collectors.records import Appender, sync_file
from advisor.collectors.sampler import Sampler

_WATCHED: Final = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SI_KERNEL: Final = 0x80  # a signal from the terminal: the whole foreground group has it already

_CHECK_S: Final = 1.0
_SYNC_S: Final = 5.0
_PROGRESS_S: Final = 5.0
_FAST_S: Final = 60.0  # after that a reading a second is enough
_SLOW_INTERVAL_S: Final = 1.0
_HOOKS_UP_S: Final = 1.0  # hooks come up within ms of an interpreter's start
_FIRST_STEP_S: Final = 600.0  # imports, downloads, compilation: the limit counts from a step
_LEAVING_S: Final = 30.0  # for a script that obeyed: checkpoints, closing of process groups
_FAREWELL_S: Final = 0.5  # for helpers that end with the command


class Agent:
    """One recording in progress."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._run = Path(plan.run)
        self._log = Appender(self._run / PROFILER_FILE)
        self._orders = Orders(self._run)
        self._monitor = Monitor(self._run, rule_of(plan.options))
        self._tree = ProcessTree(plan.attached)
        self._sampler = Sampler(self._tree, Groups.of(plan.attached or "self"))
        self._child = Child(plan.attached)
        self._start_ns = time.monotonic_ns()
        self._status = self._reason = ""  # of an end that was asked for
        self._stopping_at = 0.0
        self._escalated = 0
        self._is_detached = False
        self._shown = (self._start_ns, 0)
        self._warned: set[str] = set()
        self._first_seen: dict[int, float] = {}

    def run(self) -> int:
        """Record to the end and return the exit code."""
        become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._write_header()
        if self._plan.limit_steps is not None:  # the hooks count for themselves, exactly
            self._orders.give(self._action, self._plan.limit_steps)
        if self._plan.attached is None:
            self._child.spawn(self._plan.command, self._plan.run)
        self._watch()
        self._finish()
        self._summarise()
        if self._status == "stopped" and not self._is_detached:
            return 0
        return self._child.shell_code or 0

    @property
    def _action(self) -> int:
        return fmt.ACTION_DETACH if self._plan.continues else fmt.ACTION_STOP

    def _write_header(self) -> None:
        header = {
            "schema_version": fmt.SCHEMA_VERSION,
            "role": "profiler",
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "command": list(self._plan.command),
            "cwd": os.getcwd(),
            "started_at": self._plan.started_at,
            "t_ns": self._start_ns,
            "host": self._plan.host,
            "options": self._plan.options,
        }
        self._log.write_json(fmt.HEADER, header)

    # The loop.

    def _watch(self) -> None:
        due = dict.fromkeys(("reading", "check", "sync", "show"), 0.0)
        while self._child.code is None:
            now = time.monotonic()
            elapsed = now - self._start_ns / 1e9
            if now >= due["reading"]:
                self._log.write(fmt.READING, self._sampler.read())
                is_slow = elapsed > _FAST_S or self._is_detached
                due["reading"] = now + max(self._plan.interval_s, _SLOW_INTERVAL_S * is_slow)
            if now >= due["check"]:
                self._check(elapsed)
                due["check"] = now + _CHECK_S
            if now >= due["sync"]:
                self._sync()
                due["sync"] = now + _SYNC_S
            if now >= due["show"]:
                self._show(elapsed)
                due["show"] = now + (self._plan.progress_s or _PROGRESS_S)
            if self._has_ended_watching():
                return
            self._wait(max(0.0, min(due.values()) - time.monotonic()))

    def _has_ended_watching(self) -> bool:
        """Whether an attached process is gone or has been watched enough; children are reaped."""
        if self._plan.attached is None:
            return False
        return self._stopping_at > 0 or not self._tree.processes

    def _wait(self, pause_s: float) -> None:
        info = signal.sigtimedwait(_WATCHED, pause_s)
        if info is None:
            return
        if info.si_signo == signal.SIGCHLD:
            self._child.reap()
            return
        self._status = "interrupted"
        self._reason = f"{signal.Signals(info.si_signo).name} received"
        if self._plan.attached is not None:
            self._stopping_at = time.monotonic()
        elif info.si_code != _SI_KERNEL:
            send_signal(self._child.pid, info.si_signo)

    def _check(self, elapsed: float) -> None:
        """Look at what the hooks wrote, and stop when it is time."""
        self._monitor.update()
        self._orders.beat()
        if self._stopping_at:
            self._escalate()
            return
        self._warn_of_silent_pythons(elapsed)
        reason = self._reason_to_stop(elapsed)
        if reason and not self._status:
            self._stop(reason)

    def _reason_to_stop(self, elapsed: float) -> str:
        plan, monitor = self._plan, self._monitor
        first_ns = monitor.first_step_ns()
        since = elapsed if not first_ns else (time.monotonic_ns() - first_ns) / 1e9
        limit_s = plan.limit_s
        if monitor.expects_steps and not first_ns:
            limit_s = max(limit_s, _FIRST_STEP_S)
        if plan.limit_steps is not None and monitor.steps() >= plan.limit_steps:
            return f"{plan.limit_steps} steps"
        if since >= limit_s:
            return f"{duration_text(limit_s)} are over"
        if plan.limit_steps is None and monitor.verdict is not None and monitor.verdict.is_settled:
            return "the step time has settled"
        return ""

    def _stop(self, reason: str) -> None:
        self._status, self._reason = "stopped", reason
        self._is_detached = self._plan.continues
        if not self._plan.continues:
            self._stopping_at = time.monotonic()
        limit = self._plan.limit_steps
        if limit is None or self._monitor.steps() < limit:
            self._orders.give(self._action, self._monitor.common_last_step())

    def _escalate(self) -> None:
        """End what did not end when it was asked to: first gently, then for good."""
        waited = time.monotonic() - self._stopping_at
        mean = None if self._monitor.verdict is None else self._monitor.verdict.mean
        patience = self._plan.patience_s + 3 * (mean.raw_s if mean else 0.0)
        if self._monitor.has_obeyed:
            patience = max(patience, _LEAVING_S)
        elif self._monitor.trainer is None:
            waited += patience  # nobody is there who could hear the question
        if waited > patience + self._escalated * self._plan.patience_s and self._escalated < 2:
            number = (signal.SIGTERM, signal.SIGKILL)[self._escalated]
            self._escalated += 1
            self._tree.refresh()
            for pid in list(self._tree.processes):
                send_signal(pid, number)

    # What is said.

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._log.write_json(fmt.FACT, {"fact": "warning", "text": text})

    def _warn_of_silent_pythons(self, elapsed: float) -> None:
        if self._plan.attached is not None:
            return
        hooked = self._monitor.hooked_pids
        for pid in list(self._tree.processes):
            since = self._first_seen.setdefault(pid, elapsed)
            is_old = elapsed - since >= _HOOKS_UP_S
            # A fork of a hooked process carries the hooks; its file comes with its first record.
            if is_old and pid not in hooked and is_python(pid) and parent_of(pid) not in hooked:
                self._warn(
                    "a Python process runs without hooks (python -I, -E, -S or a cleaned "
                    "environment): resources only"
                )

    def _show(self, elapsed: float) -> None:
        if not self._plan.progress_s and self._plan.progress_fd < 0:
            return
        text = self._progress(elapsed).to_text()
        if self._plan.progress_fd >= 0:
            line = json.dumps({"elapsed_s": elapsed, "text": text})
            _write(self._plan.progress_fd, line + "\n")
        if self._plan.progress_s and elapsed > _CHECK_S:
            _write(2, f"[advisor] {text}\n")

    def _progress(self, elapsed: float) -> Progress:
        usage = self._tree.read(is_full=False)
        now_ns = time.monotonic_ns()
        before_ns, cpu_before_ns = self._shown
        self._shown = now_ns, usage.cpu_ns
        verdict = self._monitor.verdict
        waiting = f"waits for {verdict.waiting_for}" if verdict else "waits for the first step"
        return Progress(
            elapsed_s=elapsed,
            steps=self._monitor.steps(),
            verdict=verdict,
            samples_per_s=self._monitor.samples_per_s(),
            cores=max(0.0, (usage.cpu_ns - cpu_before_ns) / max(1, now_ns - before_ns)),
            rss_bytes=usage.rss_bytes,
            waiting_for=f"ends: {self._reason}" if self._reason else waiting,
        )

    def _sync(self) -> None:
        """Bring everybody's records to the disk: only a power cut could still lose them."""
        self._log.sync()
        for path in self._monitor.paths:
            sync_file(path)

    # The end.

    def _finish(self) -> None:
        self._monitor.update()
        if not self._status and self._monitor.has_obeyed:
            self._status, self._reason = "stopped", f"{self._plan.limit_steps} steps"
        status, reason = (self._status, self._reason) if self._status else self._child.ending
        if self._plan.attached is None and (left := self._survivors()):
            self._warn(f"{left} processes outlived the command")
        usage = self._tree.read()
        end = {
            "status": status,
            "stop_reason": reason,
            "exit_code": self._child.shell_code,
            "max_rss_bytes": self._child.max_rss_bytes,
            "cpu_ns": max(self._child.cpu_ns, usage.cpu_ns),
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
            _write(1, json.dumps(summary.record(seen)) + "\n")
        else:
            _write(2, "".join(f"[advisor] {line}\n" for line in summary.lines(seen)))
        if (problem := summary.problem(seen)) is not None:
            kind = "note" if seen.exit_code == 0 else "error"
            _write(2, f"{kind}: {problem[0]}\nhint: {problem[1]}\n")


def _write(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode())
    except OSError:  # a closed terminal or pipe must not end the recording
        return


def main(plan: str) -> int:
    """Record according to a plan in JSON."""
    return Agent(Plan.from_json(plan)).run()
