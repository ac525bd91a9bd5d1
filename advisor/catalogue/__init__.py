"""Offers of the cloud providers: priced, dated, checked, and read offline."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
