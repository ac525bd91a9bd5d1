"""Readers of other tools' runs, one format or family a file."""
