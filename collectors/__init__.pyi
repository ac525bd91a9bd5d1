from .errors import RecordingError as RecordingError
from .format import Reading as Reading
from .format import Recording as Recording
