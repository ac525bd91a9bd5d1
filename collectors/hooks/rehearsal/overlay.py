"""A rehearsal leaves no trace: nothing is overwritten, nothing leaves the machine.

Where the system lets a user make namespaces (user_namespaces(7)), the working folder, the home
folder and /tmp are covered by overlays in memory (overlayfs): the script sees its own writes and
the disk does not. Elsewhere Python's own ways to files are redirected to a scratch folder, and
writing outside of them is refused by an audit hook. That guards against accidents, not against
malice: see SECURITY.md.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

DONE = "ADVISOR_REHEARSAL_OVERLAY"  # this process, or one above it, has covered the folders
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_FREE = ("/dev", "/proc", "/sys/fs/cgroup")
_OFFLINE = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "offline", "MLFLOW_TRACKING_URI": "file:///tmp/advisor-rehearsal-mlruns",
    "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_OFFLINE": "1",
    "CLEARML_OFFLINE_MODE": "1", "AIM_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip


def cover(run_folder: str) -> None:
    """Cover the folders that a script may write to; the recording's own stays open."""
    # A redirection is this process's own: those that it starts install theirs.
    before = os.environ.get(DONE)
    if before == "overlay":
        return
    if before != "redirected" and _cover_folders(run_folder):
        os.environ[DONE] = "overlay"
        return
    Redirection(run_folder).install()
    os.environ[DONE] = "redirected"


def stay_offline(note: Callable[[str], None]) -> None:
    """Refuse connections beyond this machine, and tell trackers and hubs that they are offline."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _OFFLINE.items()})
    original = socket.socket.connect

    def connect(self: Any, address: Any) -> Any:
        if isinstance(address, tuple) and not _is_local(str(address[0])):
            note("connection to %s refused" % address[0])
            raise OSError("a rehearsal opens no connection beyond this machine (--network allows)")
        return original(self, address)

    socket.socket.connect = connect  # type: ignore[method-assign]


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1", "0.0.0.0", "") or host.startswith("127.")


def written_folders() -> list[str]:
    """Return the folders that are covered: none lies within another."""
    wanted = [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir()]
    real = sorted({os.path.realpath(one) for one in wanted if os.path.isdir(one)}, key=len)
    found: list[str] = []
    for one in real:
        if one != "/" and not any(_is_within(one, other) for other in found):
            found.append(one)
    return found


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _cover_folders(run_folder: str) -> bool:
    """Cover the folders by overlays; False where the system does not let us."""
    if not sys.platform.startswith("linux"):
        return False
    folders = written_folders()
    kept = [os.path.realpath(run_folder), *_mounts_within(folders)]
    # A child tries it first: half of it could not be taken back.
    child = os.fork()
    if child == 0:
        try:
            _mount_all(folders, kept)
            os._exit(0)
        except BaseException:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _mount_all(folders, kept)
    return True


def _mount_all(folders: list[str], kept: list[str]) -> None:
    """Cover the folders in a namespace of this process's own; what is kept shows through."""
    here = os.getcwd()
    _enter_namespace(os.getuid(), os.getgid())
    # Opened in the new namespace: what belongs to another cannot be mounted here.
    descriptors = [(path, os.open(path, os.O_PATH)) for path in kept if os.path.isdir(path)]
    _mount_overlays(folders)
    for path, descriptor in descriptors:
        _mount("/proc/self/fd/%d" % descriptor, path, None, _BIND | _RECURSIVE, None)
        os.close(descriptor)
    os.chdir(here)


def _enter_namespace(user: int, group: int) -> None:
    if _libc().unshare(_NEW_USER | _NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (
        ("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)),
        ("gid_map", "%d %d 1" % (group, group)),
    ):  # fmt: skip
        with open("/proc/self/" + name, "w", encoding="ascii") as file:
            file.write(text)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE, None)


def _mount_overlays(folders: list[str]) -> None:
    scratch = next(one for one in ("/mnt", "/media", "/srv") if os.path.isdir(one))
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=700")
    for number, folder in enumerate(folders):
        upper, work = ("%s/%d-%s" % (scratch, number, kind) for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        options = "lowerdir=%s,upperdir=%s,workdir=%s,userxattr" % (folder, upper, work)
        _mount("overlay", folder, "overlay", 0, options)


def _mounts_within(folders: list[str]) -> list[str]:
    """Return what is mounted below the folders: an overlay does not show it."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as file:
            places = [line.split()[1].replace("\\040", " ") for line in file]
    except OSError:
        return []
    return [
        place
        for place in places
        if any(place != folder and _is_within(place, folder) for folder in folders)
    ]


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None
) -> None:
    words = [None if one is None else one.encode() for one in (source, target, kind, options)]
    done = _libc().mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    if done != 0:
        raise OSError(ctypes.get_errno(), "mount " + target)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


class Redirection:
    """Paths that are written to, each with its copy in a scratch folder, without namespaces.

    Python's own ways to files are redirected; all others are refused.
    """

    def __init__(self, run_folder: str) -> None:
        self.scratch = tempfile.mkdtemp(prefix="advisor-rehearsal-")
        self._run = os.path.realpath(run_folder)
        self._is_ours = 0
        self._makedirs = os.makedirs

    def install(self) -> None:
        """Put the redirection in front of Python's functions, and the audit hook behind them."""
        import atexit

        atexit.register(self._remove)
        original = builtins.open

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            is_writing = any(letter in mode for letter in "wax+")
            return original(self.place(file, is_writing), mode, *rest, **named)

        modules: tuple[Any, ...] = (builtins, io)
        for module in modules:
            module.open = opened
        for name in ("stat", "lstat", "listdir", "scandir", "access"):
            self._replace(name, is_writing=False)
        for name in ("mkdir", "rmdir", "remove", "unlink", "truncate", "chmod", "utime"):
            self._replace(name, is_writing=True)
        for name in ("rename", "replace", "link", "symlink"):
            self._replace(name, is_writing=True, paths=2)
        self._replace_open()
        sys.addaudithook(self._audit)

    def place(self, path: Any, is_writing: bool) -> Any:
        """Return where a path is to be read or written instead."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path  # a descriptor
        full = os.path.abspath(os.fsdecode(path))
        if self._is_free(full):
            return path
        copy = os.path.join(self.scratch, full.lstrip("/"))
        self._is_ours += 1
        try:
            if not is_writing:
                return copy if os.path.lexists(copy) else path
            self._makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.isfile(full) and not os.path.lexists(copy):
                shutil.copy2(full, copy)
            elif os.path.isdir(full):
                self._makedirs(copy, exist_ok=True)
        finally:
            self._is_ours -= 1
        return copy

    def _is_free(self, full: str) -> bool:
        places = (*_FREE, self.scratch, self._run)
        return bool(self._is_ours) or any(_is_within(full, one) for one in places)

    def _replace(self, name: str, *, is_writing: bool, paths: int = 1) -> None:
        original = getattr(os, name, None)
        if original is None:
            return

        def redirected(*args: Any, **named: Any) -> Any:
            places = [self.place(one, is_writing) for one in args[:paths]]
            return original(*places, *args[paths:], **named)

        setattr(os, name, redirected)

    def _replace_open(self) -> None:
        original = os.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            is_writing = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            return original(self.place(path, is_writing), flags, *rest, **named)

        os.open = opened

    def _audit(self, event: str, arguments: Any) -> None:
        """Refuse what writes to the disk by another way."""
        if self._is_ours or event not in ("open", "sqlite3.connect", "shutil.rmtree"):
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes)) or path in (":memory:", b":memory:"):
            return
        if event == "open":
            flags = arguments[2] if len(arguments) > 2 else 0
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        if not self._is_free(os.path.abspath(os.fsdecode(path))):
            raise PermissionError("a rehearsal does not write to %s" % os.fsdecode(path))

    def _remove(self) -> None:
        self._is_ours += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
