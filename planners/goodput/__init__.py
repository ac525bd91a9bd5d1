"""Checkpoints, failures and restarts, and what they add to a job's time (THORN-ML)."""
