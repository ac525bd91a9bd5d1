"""Observation from outside: the host, its processes, its devices."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
