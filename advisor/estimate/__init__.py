"""The ways of training a job on given machines, one file each, and what they have in common.

A way takes a job and rows of machines and returns the best layout of every row as columns
(``TimeColumns``). ``best`` asks them all and keeps the fastest; every verb asks ``best``, through
``advisor.estimate.predictor``. A new way is a file here, a line in ``best`` and a test.
"""
