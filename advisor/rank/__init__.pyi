from .front import broken as broken
from .given import PlanQuestion as PlanQuestion
from .given import plan as plan
from .ranking import recommend as recommend
