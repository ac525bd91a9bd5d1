"""Layouts of a model over equal devices.

Step time of every combination of data, tensor, pipeline, context and expert parallelism, the
search over them, cutting layers into stages, and pipeline schedules.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
