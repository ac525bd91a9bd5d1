"""The question: which job, under which constraints, in which layout, with which software.

``Question`` is one record that the command line, Python's keywords, a project file and JSON fill
alike; ``entries.ENTRIES`` lists every name with its help.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
