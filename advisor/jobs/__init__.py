"""Jobs: what a step computes, how long the whole is, what feeds it, what was measured."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
