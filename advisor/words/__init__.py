"""Words that people read of answers, made from their JSON records in this room alone."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
