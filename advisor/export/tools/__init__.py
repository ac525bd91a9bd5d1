"""One file a tool that exports are for."""
