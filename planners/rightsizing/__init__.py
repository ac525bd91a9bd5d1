"""Limits of CPU and memory: what a run needs, and what a policy would have given it."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
