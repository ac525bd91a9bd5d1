"""Replays for the curious: spot, a shared cluster, elastic workers, failures. One question a file.

Each answer is a record (``to_record``, what ``--json`` prints), text and charts of the same
numbers.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
