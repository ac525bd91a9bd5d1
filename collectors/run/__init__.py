"""A script run and recorded, from its start to its end."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
