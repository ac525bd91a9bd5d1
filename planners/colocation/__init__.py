"""SwitchFlow and Gavel's pairs: which jobs share a device, and how fast each of them then is."""
