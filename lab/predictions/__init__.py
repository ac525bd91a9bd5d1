"""Predictions registered before anybody measured: 50 transformers on machines that are new.

``questions.csv`` asks; ``YYYY-MM-DD.json`` holds what the advisor answered that day, and CHANGELOG
has the file's SHA-256, so that nobody can mend an answer once the truth is known.

    python -m advisor.lab.predictions answer              # asks, writes the file, prints its hash
    python -m advisor.lab.predictions score MEASURED.csv  # columns: id, step_s, source
"""
