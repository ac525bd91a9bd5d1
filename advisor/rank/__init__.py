"""The recommendation: candidates pruned, asked, and their front in time and cost."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
