"""As much of an environments' library as a script needs: the classes that are made of it."""

from gymnasium.core import Env as Env
from gymnasium.core import Wrapper as Wrapper
