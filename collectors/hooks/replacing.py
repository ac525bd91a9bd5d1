"""Put a function in place of a library's, until the session lets go of the script."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session


def replace(session: Session, owner: Any, name: str, replacement: Any) -> None:
    """Put ``replacement`` in place of ``owner.name`` until the session lets go."""
    original = getattr(owner, name)
    functools.update_wrapper(replacement, original)
    setattr(owner, name, replacement)

    def restore() -> None:
        if getattr(owner, name, None) is replacement:
            setattr(owner, name, original)

    session.on_release(restore)
