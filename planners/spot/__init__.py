"""Jobs on spot instances: recorded availability, replays, forecasts and recovery strategies."""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
