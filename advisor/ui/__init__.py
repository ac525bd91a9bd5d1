"""The report as a local web application on loopback."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
