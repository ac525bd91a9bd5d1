from .pick import read_pick as read_pick
from .target import Exported as Exported
from .target import NotExportableError as NotExportableError
from .targets import TARGETS as TARGETS
from .targets import export_to as export_to
from .targets import target_of as target_of
from .targets import write as write
