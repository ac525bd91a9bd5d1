"""Write the calls of Ultralytics' detectors as rows of ``datasets/models``, from its own files.

``python -m advisor.lab.catalogue.detectors FOLDER`` reads ``cfg/models`` of an unpacked package
(8.4.190) and prints a row a network: YOLOv5, YOLOv8 and YOLO11 in five sizes. What a module
computes is that of ``nn/modules`` and ``nn/tasks.py: parse_model`` there: a convolution is
followed by a normalisation and SiLU, but for what is named otherwise. The parameters of each size
are counted from the calls, and are those that the files state.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

FAMILIES: Final = {"v5": "yolov5", "v8": "yolov8", "11": "yolo11"}
_BOXES: Final = 16  # bins of each of a box's four sides (reg_max)
_CLASSES: Final = 80


class Calls:
    """What a network computes, one call after another; ``share``: of the image's side."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, int, int, int, int]] = []

    def add(
        self, name: str, share: int, channels: int, width: int, kernel: int = 1, stride: int = 1
    ) -> None:
        self.found.append((name, share, channels, width, kernel, stride))

    def bottleneck(
        self, share: int, width: int, inner: int, kernels: tuple[int, int], adds: bool
    ) -> None:
        self.add("c", share, width, inner, kernels[0])
        self.add("c", share, inner, width, kernels[1])
        if adds:
            self.add("a", share, width, width)

    def c3(
        self, share: int, channels: int, width: int, count: int, adds: bool, first: int = 1
    ) -> None:
        inner = width // 2
        self.add("c", share, channels, inner)
        self.add("c", share, channels, inner)
        for _ in range(count):
            self.bottleneck(share, inner, inner, (first, 3), adds)
        self.add("k", share, 2 * inner, 2 * inner)
        self.add("c", share, 2 * inner, width)

    def c2f(
        self, share: int, channels: int, width: int, count: int, adds: bool, *,
        part: float = 0.5, block: str = "whole",
    ) -> None:  # fmt: skip
        inner = int(width * part)
        self.add("c", share, channels, 2 * inner)
        for _ in range(count):
            if block == "c3k":
                self.c3(share, inner, inner, 2, adds, first=3)
            else:
                self.bottleneck(share, inner, inner if block == "whole" else inner // 2,
                                (3, 3), adds)  # fmt: skip
        self.add("k", share, (2 + count) * inner, (2 + count) * inner)
        self.add("c", share, (2 + count) * inner, width)

    def pooled(self, share: int, channels: int, width: int) -> None:
        inner = channels // 2
        self.add("l", share, channels, inner)
        for _ in range(3):
            self.add("p", share, inner, inner)
        self.add("k", share, 4 * inner, 4 * inner)
        self.add("c", share, 4 * inner, width)

    def attentive(self, share: int, channels: int, count: int) -> None:
        inner = channels // 2
        self.add("c", share, channels, 2 * inner)
        for _ in range(count):
            self.add("l", share, inner, 2 * inner)
            self.add("t", share, inner, inner // 64)
            self.add("e", share, inner, inner, 3)
            self.add("l", share, inner, inner)
            self.add("a", share, inner, inner)
            self.add("c", share, inner, 2 * inner)
            self.add("l", share, 2 * inner, inner)
            self.add("a", share, inner, inner)
        self.add("c", share, 2 * inner, channels)

    def heads(self, levels: list[tuple[int, int]], *, is_light: bool) -> None:
        first = levels[0][1]
        box, kind = max(16, first // 4, 4 * _BOXES), max(first, min(_CLASSES, 100))
        for share, channels in levels:
            self.add("c", share, channels, box, 3)
            self.add("c", share, box, box, 3)
            self.add("b", share, box, 4 * _BOXES)
            if is_light:
                self.add("d", share, channels, channels, 3)
                self.add("c", share, channels, kind)
                self.add("d", share, kind, kind, 3)
                self.add("c", share, kind, kind)
            else:
                self.add("c", share, channels, kind, 3)
                self.add("c", share, kind, kind, 3)
            self.add("b", share, kind, _CLASSES)
            self.add("o", share, _CLASSES, _CLASSES + 4 * _BOXES)


def calls_of(config: dict[str, Any], size: str) -> Calls:
    """Return the calls of one size of a family."""
    depth, width, most = config["scales"][size]
    made = Calls()
    outs: list[tuple[int, int]] = []
    now = (1, 3)
    for sources, times, module, args in [*config["backbone"], *config["head"]]:
        count = max(round(times * depth), 1) if times > 1 else times
        many = sources if isinstance(sources, list) else [sources]
        share, channels = now if many[0] == -1 else outs[many[0]]
        out = 8 * math.ceil(min(args[0], most) * width / 8) if isinstance(args[0], int) else 0
        if module == "Conv":
            made.add("c", share, channels, out, args[1], args[2])
            now = (share * args[2], out)
        elif module == "nn.Upsample":
            now = (share // 2, channels)
            made.add("k", *(now[0], channels, channels))
        elif module == "Concat":
            total = channels + sum(outs[one][1] for one in many[1:])
            made.add("k", share, total, total)
            now = (share, total)
        elif module == "SPPF":
            made.pooled(share, channels, out)
            now = (share, out)
        elif module == "C2PSA":
            made.attentive(share, channels, count)
            now = (share, channels)
        elif module == "C3":
            made.c3(share, channels, out, count, len(args) < 2 or args[1])
            now = (share, out)
        elif module == "C2f":
            made.c2f(share, channels, out, count, len(args) > 1 and args[1])
            now = (share, out)
        elif module == "C3k2":
            is_deep = args[1] or size in "mlx"
            part = args[2] if len(args) > 2 else 0.5
            made.c2f(share, channels, out, count, True, part=part,
                     block="c3k" if is_deep else "half")  # fmt: skip
            now = (share, out)
        else:
            levels = [outs[one] for one in many]
            light = any(row[2] == "C3k2" for row in config["backbone"])
            made.heads(levels, is_light=light)
        outs.append(now)
    return made


def parameters(calls: Calls) -> int:
    """Return the trained parameters, those of normalisations and biases among them."""
    total = 0
    for name, _, channels, width, kernel, _ in calls.found:
        if name in "cldeb":
            total += (1 if name in "de" else channels) * width * kernel**2
            total += width if name == "b" else 2 * width
    return total


def _stated(text: str, size: str) -> str:
    """Return the trained parameters that a file states beside a size; nothing where none."""
    match = re.search(rf"^ +{size}: .*?(\d{{6,}}) gradients", text, re.M)
    return match[1] if match else ""


def main(folder: str) -> None:
    """Print the rows."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    for short, name in FAMILIES.items():
        path = next(Path(folder, "cfg", "models", short).glob(f"{name}.yaml"))
        config = yaml.safe_load(path.read_text())
        for size in config["scales"]:
            calls = calls_of(config, size)
            text = " ".join(f"{one[0]}{':'.join(map(str, one[1:]))}" for one in calls.found)
            held = {"_class_name": "DetectionModel", "image_size": 640, "calls": text}
            others = f"{name}{size}u {name}{size}.pt" if short == "v5" else f"{name}{size}.pt"
            others = f"{others} {name.replace('yolo', 'yolo-')}{size}"
            count, said = parameters(calls), _stated(path.read_text(), size)
            by = "ultralytics" if said else "card"
            said = said or f"{math.floor(count / 1e5) / 10}M"
            held_text = json.dumps(held, separators=(",", ":"))
            out.writerow([f"Ultralytics/{name}{size}", others, "", held_text, count, said, "",
                          by, "ultralytics"])  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
