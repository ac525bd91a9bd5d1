"""Time and memory of a training step: on which device, over which links, in which layout.

Complete in itself: imports nothing of ``advisor``, opens no files, knows no prices. Fitted
constants come in as frozen parameter records. One system or concept a file; the symbol table and
source stand in each module's docstring.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
