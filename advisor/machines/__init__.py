"""Machines as columns: devices, links and hosts, no prices."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
