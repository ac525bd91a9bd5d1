from .facts import Recipe as Recipe
from .read import recipe as recipe
