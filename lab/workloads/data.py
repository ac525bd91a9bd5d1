"""Data and losses of the zoo: present offline wherever torch and scikit-learn are.

All functions are deterministic and cached: the same process gives the same dataset object.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from advisor.collectors.errors import RecordingError

PATCH: Final = 32  # side of a photograph's patch, as CIFAR's images have it [pixels]
PATCHES: Final = 2048
CONTEXT: Final = 64  # characters of one text sample
CHARACTERS: Final = 128  # ASCII; anything else in the corpus is dropped
CORPUS_CHARACTERS: Final = 2_000_000
USERS: Final = 4096
ITEMS: Final = 2048
RATINGS: Final = 100_000
NEIGHBOURS: Final = 8


@cache
def digits() -> TensorDataset:
    """Return scikit-learn's 1,797 handwritten digits: 64 brightnesses in [0, 1], a class of 10."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return TensorDataset(
        torch.from_numpy((pixels / 16.0).astype(np.float32)), torch.from_numpy(labels.astype(int))
    )


@cache
def patches() -> TensorDataset:
    """Return 2,048 patches (3, 32, 32) of scikit-learn's two photographs, and where they are from.

    The class is photograph x quadrant, 8 in all: colour and texture tell it, not perfectly.
    """
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    try:
        photographs = load_sample_images().images
    except ImportError as error:
        raise RecordingError(
            "the sample photographs cannot be decoded", hint="pip install pillow"
        ) from error
    images = np.empty((PATCHES, 3, PATCH, PATCH), dtype=np.float32)
    labels = np.empty(PATCHES, dtype=np.int64)
    for i in range(PATCHES):
        which = i % len(photographs)
        height, width, _ = photographs[which].shape
        y, x = rng.integers(height - PATCH), rng.integers(width - PATCH)
        crop = photographs[which][y : y + PATCH, x : x + PATCH]
        images[i] = crop.transpose(2, 0, 1).astype(np.float32) / 255.0 - 0.5
        below, right = 2 * y > height - PATCH, 2 * x > width - PATCH
        labels[i] = 4 * which + 2 * int(below) + int(right)
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a character corpus: the input, and the same one character later."""

    def __init__(self, corpus: torch.Tensor) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return (len(self.corpus) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * CONTEXT
        window = self.corpus[start : start + CONTEXT + 1].long()
        return window[:-1], window[1:]


@cache
def text() -> Text:
    """Return the first two million ASCII characters of the standard library's modules."""
    folder = Path(sysconfig.get_path("stdlib"))
    pieces: list[bytes] = []
    size = 0
    for path in sorted(folder.glob("*.py")):
        piece = bytes(byte for byte in path.read_bytes() if byte < CHARACTERS)
        pieces.append(piece)
        size += len(piece)
        if size >= CORPUS_CHARACTERS:
            break
    corpus = np.frombuffer(b"".join(pieces)[:CORPUS_CHARACTERS], dtype=np.uint8).copy()
    return Text(torch.from_numpy(corpus))


@cache
def ratings() -> TensorDataset:
    """Return 100,000 SYNTHETIC ratings: user, item, and what the user thinks of the item.

    That is the item's quality, and half a product of hidden traits, with some noise.
    """
    rng = np.random.default_rng(0)
    traits_of_users = rng.normal(size=(USERS, 4))
    traits_of_items = rng.normal(size=(ITEMS, 4))
    qualities = rng.normal(size=ITEMS)
    users, items = rng.integers(USERS, size=RATINGS), rng.integers(ITEMS, size=RATINGS)
    match = (traits_of_users[users] * traits_of_items[items]).sum(axis=1) / 2.0
    liking = qualities[items] + match / 2.0
    noise = rng.normal(scale=0.1, size=RATINGS)
    return TensorDataset(
        torch.from_numpy(users),
        torch.from_numpy(items),
        torch.from_numpy((liking + noise).astype(np.float32)),
    )


@cache
def neighbours() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits' pixels (1797, 64) and each one's 8 nearest others (1797, 8)."""
    pixels = digits().tensors[0]
    distance = torch.cdist(pixels, pixels)
    distance.fill_diagonal_(torch.inf)
    return pixels, distance.topk(NEIGHBOURS, largest=False).indices


def class_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the samples' classes; the batch is ``(samples, labels)``."""
    samples, labels = batch
    return functional.cross_entropy(model(samples), labels)


def next_character_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the next character; the batch is of ``data.Text``."""
    now, later = batch
    return functional.cross_entropy(model(now).flatten(0, 1), later.flatten())
