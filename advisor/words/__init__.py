"""What people read of answers, made from their JSON records: the one room that writes words."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
