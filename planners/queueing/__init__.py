"""A shared cluster: when jobs start and end under a scheduling policy (Tiresias)."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
