from .chrome_trace import step_trace as step_trace
from .memory_snapshot import snapshot_file as snapshot_file
from .page import GENERATOR as GENERATOR
from .page import answer_page as answer_page
from .page import asset as asset
from .page import page_data as page_data
from .simulation import show_simulated as show_simulated
from .simulation import show_simulation as show_simulation
