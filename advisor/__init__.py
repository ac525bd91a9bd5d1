"""From a minute of a training script to the cloud machines to rent, with time, cost and layout.

Names are imported when they are used: ``import advisor`` itself loads nothing heavy.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
