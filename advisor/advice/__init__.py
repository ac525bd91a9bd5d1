"""Advice before anything is rented: cures that make a job faster or cheaper, with their prices."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
