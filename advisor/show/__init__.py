"""An answer's record as words of one line, tables and charts. No estimate is made here.

Everything works from the JSON records (``to_record()``), so that a notebook, a page and a file say
the same.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
