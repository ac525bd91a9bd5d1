"""Limits of CPU and memory: what a run needs, and what a policy would have given it."""
