"""The laboratory's verbs of the command line; ``advisor`` finds them by their entry points."""
