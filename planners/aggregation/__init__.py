"""Aggregation of gradients as a service that several jobs share."""
