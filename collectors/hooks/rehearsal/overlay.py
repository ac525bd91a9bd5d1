"""A rehearsal leaves no trace: nothing is overwritten, nothing leaves the machine.

Where the system lets a user make namespaces (user_namespaces(7)), the working folder, the home
folder and /tmp are covered by overlays in memory (overlayfs): the script sees its own writes and
the disk does not. Elsewhere Python's own ways to files are redirected to a scratch folder, and
writing outside of them is refused by an audit hook. That guards against accidents, not against
malice: see SECURITY.md.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

DONE = "ADVISOR_REHEARSAL_OVERLAY"  # this process, or one above it, has covered the folders
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
NONE = "ADVISOR_REHEARSAL_NO_OVERLAY"  # set: files are redirected, as where none can be made
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
# Beside a mount, files up to this size are copied, and folders with so many entries covered.
_SMALL_BYTES, _MOST_ENTRIES = 1 << 20, 4000
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
    if before != "redirected" and not os.environ.get(NONE) and _cover_folders(run_folder):
        os.environ[DONE] = "overlay"
        return
    if before != "redirected":
        sys.stderr.write(
            "[advisor] this system makes no overlays: what Python writes goes to a scratch "
            "folder, and other writes are refused\n"
        )
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
    folders, run = written_folders(), os.path.realpath(run_folder)
    # A child tries it first: half of it could not be taken back.
    child = os.fork()
    if child == 0:
        try:
            _mount_all(folders, run)
            os._exit(0)
        except BaseException:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _mount_all(folders, run)
    return True


def _mount_all(folders: list[str], run: str) -> None:
    """Cover the folders in a namespace of this process's own; the recording shows through."""
    here = os.getcwd()
    _enter_namespace(os.getuid(), os.getgid())
    # Opened in the new namespace: what belongs to another cannot be mounted here.
    descriptor = os.open(run, os.O_PATH)
    overlays = _Overlays(_mounts_within(folders))
    for folder in folders:
        overlays.cover(folder)
    _mount("/proc/self/fd/%d" % descriptor, run, None, _BIND | _RECURSIVE, None)
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


class _Overlays:
    """Overlays in memory over folders: none lies over another mount, but each may have its own.

    A folder with a mount below it is made anew in memory: its folders are covered one by one,
    small files are copied, and others can only be read.
    """

    def __init__(self, mounts: list[str]) -> None:
        self._mounts = mounts
        places = [one for one in ("/mnt", "/media", "/srv") if os.path.isdir(one)]
        self._scratch = min(places, key=lambda one: len(os.listdir(one)))  # it hides what is there
        self._made = 0
        _mount("tmpfs", self._scratch, "tmpfs", 0, "mode=700")

    def cover(self, folder: str, descriptor: int = -1) -> None:
        """Cover a folder, seen through a descriptor where it is hidden by now."""
        below = [one for one in self._mounts if one != folder and _is_within(one, folder)]
        own = os.open(folder, os.O_PATH) if descriptor < 0 else descriptor
        source = "/proc/self/fd/%d" % own
        if below:
            self._make_anew(folder, source)
        else:
            try:
                self._lay_over(folder, source)
            except OSError:  # not every file system can lie below (FUSE, another overlay)
                if folder not in self._mounts:
                    raise
                _show(source, folder)
        os.close(own)

    def _lay_over(self, folder: str, source: str) -> None:
        self._made += 1
        upper, work = (
            "%s/%d-%s" % (self._scratch, self._made, kind) for kind in ("upper", "work")
        )
        os.mkdir(upper)
        os.mkdir(work)
        options = "lowerdir=%s,upperdir=%s,workdir=%s,userxattr" % (source, upper, work)
        _mount("overlay", folder, "overlay", 0, options)

    def _make_anew(self, folder: str, source: str) -> None:
        entries = list(os.scandir(source))
        if len(entries) > _MOST_ENTRIES:
            raise OSError("too many entries beside a mount: " + folder)
        folders = [
            (one.name, os.open(one.path, os.O_PATH))
            for one in entries if one.is_dir(follow_symlinks=False)
        ]  # fmt: skip
        files = [one for one in entries if not one.is_dir(follow_symlinks=False)]
        hidden = os.open(source, os.O_PATH)
        _mount("tmpfs", folder, "tmpfs", 0, "mode=755")
        for one in files:
            path = "/proc/self/fd/%d/%s" % (hidden, one.name)
            target = os.path.join(folder, one.name)
            if one.is_symlink():
                os.symlink(os.readlink(path), target)
            elif one.is_file() and one.stat().st_size <= _SMALL_BYTES:
                with contextlib.suppress(OSError):  # what is not readable here is not shown
                    shutil.copy2(path, target)
            else:
                Path(target).touch()
                if one.is_file():
                    _show(path, target)
                else:  # a socket
                    _mount(path, target, None, _BIND, None)
        os.close(hidden)
        for name, descriptor in folders:
            target = os.path.join(folder, name)
            os.mkdir(target)
            try:
                self.cover(target, descriptor)
            except OSError:  # another user's: it cannot be read, let alone be covered
                os.close(descriptor)


def _show(source: str, target: str) -> None:
    """Have a file or folder be seen in a place, to be read."""
    _mount(source, target, None, _BIND, None)
    flags = os.statvfs(source).f_flag  # what it was mounted with nobody may take off it
    kept = flags & (2 | 4 | 8 | 1024)  # nosuid, nodev, noexec, noatime
    kept |= 1 << 21 if flags & 4096 else 0  # relatime, which has two numbers
    _mount(None, target, None, _BIND | _REMOUNT | _READ_ONLY | kept, None)


def _mounts_within(folders: list[str]) -> list[str]:
    """Return what is mounted below the folders: an overlay cannot lie over it."""
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
        self._process = os.getpid()
        self._gone: set[str] = set()  # what the script removed; the disk still has it

    def install(self) -> None:
        """Put the redirection in front of Python's functions, and the audit hook behind them."""
        import atexit

        atexit.register(self._remove)
        # Temporary files are real, and removed in the end: sockets are bound in C.
        tempfile.tempdir = os.environ["TMPDIR"] = os.path.join(self.scratch, "tmp")
        os.makedirs(tempfile.tempdir, exist_ok=True)
        original, remove_all = builtins.open, shutil.rmtree

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            is_writing = any(letter in mode for letter in "wax+")
            return original(self.place(file, is_writing), mode, *rest, **named)

        modules: tuple[Any, ...] = (builtins, io)
        for module in modules:
            module.open = opened

        def removed(path: Any, *rest: Any, **named: Any) -> None:
            remove_all(self.place(path, True), *rest, **named)
            self._removed(path)

        tree: Any = shutil
        tree.rmtree = removed
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
            is_gone = any(_is_within(full, one) for one in self._gone)
            if not is_writing:
                return copy if is_gone or os.path.lexists(copy) else path
            parent = os.path.dirname(full)
            if os.path.isdir(parent):  # else the script is told that its folder is not there
                os.makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.isfile(full) and not is_gone and not os.path.lexists(copy):
                shutil.copy2(full, copy)
            elif os.path.isdir(full) and not is_gone:
                os.makedirs(copy, exist_ok=True)
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

        is_removal = name in ("rmdir", "remove", "unlink", "rename", "replace")

        def redirected(*args: Any, **named: Any) -> Any:
            if any(key.endswith("dir_fd") and named[key] is not None for key in named):
                return original(*args, **named)  # in a folder that was opened where it lies
            places = [self.place(one, is_writing) for one in args[:paths]]
            found = original(*places, *args[paths:], **named)
            if is_removal and args:
                self._removed(args[0])
            return found

        setattr(os, name, redirected)

    def _removed(self, path: Any) -> None:
        """Note that the script removed a path: what is still on the disk is not seen again."""
        full = os.path.abspath(os.fsdecode(path)) if not isinstance(path, int) else ""
        if full and not self._is_free(full):
            self._gone.add(full)

    def _replace_open(self) -> None:
        original = os.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if named.get("dir_fd") is not None:
                return original(path, flags, *rest, **named)
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
        if os.getpid() == self._process:  # a fork's end is not the script's
            self._is_ours += 1
            shutil.rmtree(self.scratch, ignore_errors=True)
