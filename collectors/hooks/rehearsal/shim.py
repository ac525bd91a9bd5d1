"""A torch that accepts fake tensors on ``cuda`` without a device: one small library, built once.

A CPU build has neither a device guard nor hooks for CUDA. A build for CUDA has a guard for
machines without a device (``torch._C._ensureCUDADeviceGuardSet``, pytorch#163187), but its hooks
ask the driver as soon as a backward pass begins (2.15): it takes the library too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Optional

_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_LOADED: list[object] = []  # a library that is let go of takes its guard along


class CannotRehearseError(Exception):
    """A rehearsal is impossible here; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def build(torch_folder: str) -> str:
    """Return the library for a torch; it is built on the first use with a version of it.

    Raises CannotRehearseError where there is no compiler, or the build fails.
    """
    if not sys.platform.startswith("linux"):
        raise CannotRehearseError(
            "rehearsals need Linux",
            "record on Linux, in a container or in the Windows Subsystem for Linux",
        )
    version = _version(torch_folder)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = "rehearsal-%s-%s.so" % (version, sysconfig.get_platform())
    path = os.path.join(cache, "advisor", name)
    if os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(_SOURCE):
        return path
    compiler = _compiler()
    if compiler is None:
        raise CannotRehearseError(
            "a rehearsal needs a C++ compiler once, and there is none",
            "install one: apt install g++",
        )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    include = os.path.join(torch_folder, "include")
    temporary = "%s.%d" % (path, os.getpid())
    command = [
        compiler, "-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-I" + include,
        "-I" + os.path.join(include, "torch", "csrc", "api", "include"), _SOURCE,
        "-o", temporary, "-L" + os.path.join(torch_folder, "lib"), "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ADVISOR_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise CannotRehearseError(
            "the rehearsal's library does not build with torch %s: %s" % (version, first[:300]),
            "rehearse with torch 2.13 (pip install torch==2.13.0)",
        )
    os.replace(temporary, path)
    return path


def load(torch_folder: str, path: str) -> None:
    """Load the library into this process, before torch is imported."""
    # torch's own libraries first: the shim registers itself with them.
    for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
        library = os.path.join(torch_folder, "lib", name)
        if os.path.exists(library):
            _LOADED.append(ctypes.CDLL(library))
    _LOADED.append(ctypes.CDLL(path))


def _compiler() -> Optional[str]:
    """Return the C++ compiler: the user's choice, else the first one there is."""
    named = os.environ.get("CXX", "").split()[:1]
    for name in (*named, *_COMPILERS):
        found = shutil.which(name)
        if found:
            return found
    return None


def _version(torch_folder: str) -> str:
    """Return torch's version without importing it."""
    try:
        with open(os.path.join(torch_folder, "version.py"), encoding="utf-8") as file:
            for line in file:
                if line.startswith("__version__"):
                    return line.split("=")[1].strip().strip("'\"")
    except (OSError, IndexError):
        pass
    return "unknown"
