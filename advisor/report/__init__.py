"""Show results to people: the only modules, beside the verbs, that know of terminals."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
