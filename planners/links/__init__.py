"""Time of communication between devices.

Collectives, data, tensor, context and expert parallelism, and how measured clusters scale.
"""
