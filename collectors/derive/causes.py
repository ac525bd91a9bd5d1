"""Why a command ended before its first training step, and what to do about that, in two lines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from advisor.collectors.errors import duration_text, shell_line
from advisor.collectors.format import Ended, Recording

# Distributions whose package has another name, as the Python Package Index lists them
# (2026-11-25); for all others pip takes the package's own.
_DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "jose": "python-jose",
    "lightning_fabric": "lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
_GIVE_UP: Final = "its output above says why it ended; `advisor profile` only watched"
_KILLED: Final = (
    "SIGKILL is what a system sends that has no memory left: rehearse the script, which needs "
    "none: advisor profile --rehearse SCRIPT"
)


def install_hint(python: str, packages: Sequence[str], reason: str = "") -> str:
    """Return what to do about packages that the Python that was used does not have.

    >>> install_hint("python3", ["cv2", "einops"])
    'cv2, einops are not installed in python3: python3 -m pip install opencv-python einops, or \
activate the environment that has them'
    """
    names, verb = ", ".join(packages), "is" if len(packages) == 1 else "are"
    place = f"{python} ({reason})" if reason else python
    wanted = " ".join(_DISTRIBUTIONS.get(name, name) for name in packages)
    them = "it" if len(packages) == 1 else "them"
    pip = f"{shell_line([python])} -m pip install {wanted}"
    return (
        f"{names} {verb} not installed in {place}: {pip}, or activate the environment that has "
        f"{them}"
    )


def early_end(seen: Recording) -> tuple[str, str]:
    """Return what ended a command before its first step, and what to do about it."""
    what = f"{seen.stop_reason} after {duration_text(seen.duration_s)}, before its first step"
    ended = seen.ended
    if ended is None:
        is_real_kill = "SIGKILL" in seen.stop_reason and seen.rehearsal is None
        return what, _KILLED if is_real_kill else _GIVE_UP
    return f"{what}: {_said(ended)}", _cure(ended, seen)


def _said(ended: Ended) -> str:
    """Return the cause in the words of an error."""
    what = ended.what
    at = f" ({ended.where})" if ended.where else ""
    return {
        "package": f"no package {what} is installed{at}",
        "distribution": f"{what} is not installed{at}",
        "own package": f"{what} lies in this folder, where Python does not look for it{at}",
        "file": f"there is no {what or 'file that it opens'}{at}",
        "network": f"{what or 'a host on the network'} was not reached{at}",
        "offline": f"a rehearsal lets nothing connect to {what or 'the network'}{at}",
        "accelerator": f"it needs a GPU{at}",
        "memory": f"memory ran out{at}",
    }.get(ended.cause, f"{what}{at}")


def _cure(ended: Ended, seen: Recording) -> str:
    what, script = ended.what, shell_line(_words_of(seen))
    rehearse = f"advisor profile --rehearse {script}"
    if ended.cause == "package":
        return install_hint(ended.python, [what])
    if ended.cause == "distribution":
        return f"{shell_line([ended.python])} -m pip install {what}"
    at, cause = ended.where or "the script", ended.cause
    if seen.rehearsal is not None and cause in ("accelerator", "memory"):
        cause = "error"  # what would rehearse it
    return {
        "own package": f"say where it is: PYTHONPATH=. advisor profile {script}",
        "file": f"put {what or 'the file'} there, or give the script another path"
        + ("" if os.path.isabs(what) else f" (relative ones count from {seen.folder})"),
        "network": f"get its data from {what or 'there'} first, where there is a network, then "
        "profile again",
        "offline": "download the data first, or let it connect: advisor profile --network "
        f"{script}",
        "download": "have the script download its data first (many have download=True, or a "
        "script beside them), then profile again",
        "arguments": f"give them after the script: advisor profile {script} ...",
        "accelerator": f"leave --no-rehearse out: {rehearse}",
        "memory": f"rehearse it, which needs none: {rehearse}; or give it a smaller batch",
    }.get(cause, f"fix {at}: its traceback is above; `advisor profile` only watched")


def _words_of(seen: Recording) -> Sequence[str]:
    """Return the command as ``advisor profile`` takes it: without the Python that it chose."""
    words = list(seen.command)
    if len(words) > 1 and os.path.basename(words[0]).startswith("python"):
        is_script = words[1].endswith((".py", ".ipynb")) or words[1] == "-m"
        return words[1:] if is_script else ["--", *words]
    return words or ["SCRIPT"]
