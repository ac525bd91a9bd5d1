"""Time of a training step on one device.

Models are described from a few numbers or a recording as operators; their rates on a device come
from a roofline, or from the shapes of a transformer's layers, and are calibrated on measured
steps.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
