"""Domain records, columns, units and the error that all planners share."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
