"""A recommendation in the words of the tools that run it."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
