"""The nouns of the advisor: what is sold, what is proposed, what is believed about it. No I/O."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
