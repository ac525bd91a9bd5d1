"""Labelled runs: what the learned models are fitted on, and the files that hold them."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
