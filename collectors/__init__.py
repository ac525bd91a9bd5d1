"""What was seen of a training script: run it, sample it, hook it, read it back.

Complete in itself: imports nothing of ``advisor`` and nothing of the planners.
"""

from advisor.collectors.errors import RecordingError
from advisor.collectors.recording import Reading, Recording

__all__ = ["Reading", "Recording", "RecordingError"]
