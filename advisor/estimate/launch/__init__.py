"""Commands of the frameworks that run a layout."""
