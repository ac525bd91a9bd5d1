"""Experts kept on the device while a mixture of experts serves: hit rates and token latency."""
