"""Fit the shipped constants and models again from measurements: one thing fitted a module."""
