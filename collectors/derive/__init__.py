"""Step time, work and resources derived from recordings, and how certain they are."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
