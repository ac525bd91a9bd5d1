from .facts import Recipe as Recipe
from .read import TOOLS as TOOLS
from .read import recipe as recipe
