"""``python -m advisor.cli`` is the same as ``advisor``."""

from advisor.cli.program import main

main()
