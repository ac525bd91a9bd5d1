"""Published systems, one module each: its equations, symbols and sources."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
