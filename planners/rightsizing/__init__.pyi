from .limits import RightSize as RightSize
from .limits import memory_limit_bytes as memory_limit_bytes
from .limits import right_size as right_size
from .replay import RecordedUsage as RecordedUsage
