"""The gate at submission: whether machines that are asked for keep a job's limits.

``decision.decide`` is the one function that decides; it asks the estimate behind ``predict`` and
``recommend``. ``sbatch`` and ``skypilot_tasks`` only read what is submitted, ``skypilot`` (an
admin policy) and ``cli_filter.lua`` (Slurm) only hand it over. Nothing is imported here: SkyPilot
loads the policy in an environment of its own, without what the advisor computes with.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
