"""Replays for the curious: spot, a shared cluster, elastic workers, failures. One verb a file.

``questions`` has what is asked; ``answer`` of a verb's module returns the record that ``--json``
prints, and charts of the same numbers.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
