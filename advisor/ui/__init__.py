"""The report as a local web application on loopback."""
