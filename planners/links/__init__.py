"""Time of communication between devices.

Collectives, data, tensor, context and expert parallelism, and how measured clusters scale.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
