"""The catalogue brought up to date: downloads, checks, the new snapshot."""
