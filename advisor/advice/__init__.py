"""What would make a job faster or cheaper before anything is rented: cures with their prices."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
