"""The estimate: ways of training a job on machines, one file each, and the best of them."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
