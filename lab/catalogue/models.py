"""Count every model of ``datasets/models`` with the code that its makers publish.

``python -m advisor.lab.catalogue.models``, where transformers and diffusers are installed, builds
each row on the meta device and prints the rows whose ``parameters`` are others. It ends with 1 if
there are any.
"""

from __future__ import annotations

import csv
import importlib
import json
import sys
from typing import Any, Final

import torch

from advisor import data

# transformers 5 ties the head of these to the embeddings, whatever the configuration says; their
# checkpoints have both.
_TIED_IN_CODE: Final = frozenset({"t5", "mt5"})


def counted(model_type: str, config: dict[str, Any]) -> int:
    """Return the parameters of the model of a configuration, tied ones once."""
    rest = {k: v for k, v in config.items() if k not in ("architectures", "_class_name")}
    with torch.device("meta"):
        if not model_type:
            model = getattr(importlib.import_module("diffusers"), config["_class_name"])(**rest)
        else:
            library: Any = importlib.import_module("transformers")
            described = library.CONFIG_MAPPING[model_type](**rest)
            model = getattr(library, config["architectures"][0])(described)
            model.tie_weights()
    parameters = sum(one.numel() for one in model.parameters())
    if model_type in _TIED_IN_CODE and config.get("tie_word_embeddings") is False:
        head, embeddings = model.lm_head.weight, model.shared.weight
        parameters += embeddings.numel() if head is embeddings else 0
    return int(parameters)


def main() -> int:
    """Print the rows that count otherwise; return the exit code."""
    path = data.root("datasets") / "models" / "models.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    differing = 0
    for row in rows:
        found = counted(row["model_type"], json.loads(row["config"]))
        if found != int(row["parameters"]):
            differing += 1
            sys.stdout.write(f"{row['id']}: {found:,} counted, {row['parameters']} in the table\n")
    sys.stdout.write(f"{len(rows)} rows counted, {differing} differ\n")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
