"""A shared cluster: when jobs start and end under a scheduling policy (Tiresias)."""
