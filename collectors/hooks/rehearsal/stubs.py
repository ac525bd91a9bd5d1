"""Packages that need CUDA to be imported, as far as training scripts use them.

Each is a function that makes the module, called where the script imports the package and it is
not there (or cannot be). A new one is a function here and a line in ``STUBS``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .values import Notes


def _flash_attention(module: Any) -> None:
    """Fill ``flash_attn``: attention over (batch, length, heads, width), by torch's own kernel."""
    from torch.nn import functional

    def flash_attn_func(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None,
        causal: bool = False, **_: Any,
    ) -> Any:  # fmt: skip
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        found = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        return found.transpose(1, 2)

    def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
        return flash_attn_func(*qkv.unbind(2), *args, **kwargs)

    def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
        return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
        max_seqlen_k: int, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        # As one sequence a batch of the longest: no less than what the kernel does.
        return flash_attn_func(q[None], k[None], v[None], *args, **kwargs)[0]

    module.__version__ = "2.8.0"
    for own in (
        flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func,
        flash_attn_varlen_func,
    ):  # fmt: skip
        setattr(module, own.__name__, own)
    interface: Any = types.ModuleType("flash_attn.flash_attn_interface")
    interface.__dict__.update({k: v for k, v in vars(module).items() if k.startswith("flash_")})
    sys.modules["flash_attn.flash_attn_interface"] = module.flash_attn_interface = interface


# Package -> what fills its stub.
STUBS: dict[str, Callable[[Any], None]] = {"flash_attn": _flash_attention}


def _is_script_asking() -> bool:
    """Whether the script imports a package itself: a library that looks for it is told no."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and "importlib" not in name and name != __file__:
            return "site-packages" not in name
        frame = frame.f_back
    return False


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for a package of ``STUBS`` that is not installed; the last of the finders."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a stub, None for everything else."""
        if name not in STUBS or not _is_script_asking():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Leave the making of the module to the import system."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill the stub."""
        STUBS[module.__name__](module)
        self._notes.add("%s is not installed: a stub stands in" % module.__name__)
