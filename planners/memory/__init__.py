"""Device and host memory of training.

Parameters, gradients and optimizer state by ZeRO stage, activations by recomputation, offload.
"""
