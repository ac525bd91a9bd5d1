"""Ranks that compute for longer than the others: how unlike they are, and what mends it."""
