from .facts import Recipe as Recipe
from .read import recipe as recipe
from .slurm import READ as READ
from .slurm import count_of as count_of
from .slurm import directives as directives
from .slurm import gpus_of as gpus_of
from .slurm import gpus_of_gres as gpus_of_gres
from .slurm import read_options as read_options
