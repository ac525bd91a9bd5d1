"""Published systems, one module each: its equations, symbols and sources."""
