"""Recordings of training scripts: run them, sample them, hook them, read them back.

Complete in itself: imports nothing of ``advisor`` and nothing of the planners.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
