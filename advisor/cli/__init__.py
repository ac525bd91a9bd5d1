"""The command line: a function, or a group, a verb."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
