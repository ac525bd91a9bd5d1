"""Unlike machines together: groups, places, bounds, peers."""
