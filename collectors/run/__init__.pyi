from .runner import Interpreter as Interpreter
from .runner import become_agent as become_agent
from .runner import interpreter_for as interpreter_for
from .runner import plan_recording as plan_recording
from .runner import profile as profile
from .runner import rehearsed as rehearsed
from .runner import run_plan as run_plan
from .runner import share_run as share_run
