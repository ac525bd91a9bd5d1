"""A recording as it lies on disk, and as it is read back."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
