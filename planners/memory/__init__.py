"""Device and host memory of training.

Parameters, gradients and optimizer state by ZeRO stage, activations by recomputation, offload.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
