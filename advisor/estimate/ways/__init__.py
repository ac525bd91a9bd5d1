"""Ways to train: data and model parallelism, programs, stages, unlike machines together."""
