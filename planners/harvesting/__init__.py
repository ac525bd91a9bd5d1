"""Memory that a program holds and does not touch: what may be taken, and what that costs."""
