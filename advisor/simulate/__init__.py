"""Replays for the curious: spot, a shared cluster, elastic workers, failures. One question a file.

Each answer is a record (``to_record``, what ``--json`` prints), text and charts of the same
numbers.
"""
