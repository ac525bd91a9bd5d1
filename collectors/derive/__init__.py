"""What recordings tell: step time, work, resources, and how certain that is."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
