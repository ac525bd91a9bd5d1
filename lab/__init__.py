"""The laboratory beside the product: questions with their truth, measurements and fits."""
