"""The code that runs inside the recorded script: loaded by path, in whatever Python it uses.

Nothing here may import ``advisor`` (it need not be installed there), change what the script
computes, or let an exception of ours reach it. Syntax and library calls stay within Python 3.8.
"""
