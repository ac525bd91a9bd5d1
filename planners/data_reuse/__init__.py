"""PerFect and data echoing: what an input-bound job gains from loading less."""
