"""Layouts of a model over equal devices.

Step time of every combination of data, tensor, pipeline, context and expert parallelism, the
search over them, cutting layers into stages, and pipeline schedules.
"""
