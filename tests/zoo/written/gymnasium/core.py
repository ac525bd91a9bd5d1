"""The classes."""


class Env:
    """An environment."""


class Wrapper(Env):
    """An environment around another."""

    def __init__(self, env):
        self.env = env

    def reset(self):
        """Begin anew."""
        return self.env.reset()

    def step(self, action):
        """Pass an action on."""
        return self.env.step(action)
