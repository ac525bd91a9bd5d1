"""A recommendation in the words of the tools that run it."""
