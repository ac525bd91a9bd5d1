"""What is learned of the errors of the step-time equation on GPUs, each learner taken blind.

    python -m advisor.lab.experiments.learned_steps [--folds 5] [--epochs 30] [--own]

Every measured step of the suites (layers, described models, recorded scripts) has the error
ln(measured / equation) of its GPU's specifications. Of what is left out (GPUs, chip families,
families of models, sources) each learner predicts the errors from the others; sources count alike.

- ``process``: what ships (``planners.step.calibrate``), its shape chosen within what it sees.
- ``nearest``: the mean error of the nearest steps, by make-up and by rates of the device.
- ``trees``: boosted trees on the shares of operators in the computed step, make-up and sheet.
- ``network``: a recurrent network over the operators of the step in order, beside the sheet.

The constants of the equation itself have seen every row, for all learners alike.

``--own``: what a user's own runs add (``advisor train steps``). The recorded steps of each machine
are a user's: half of its networks are asked, of the others none, three or all are known, its GPU
is in no published row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.lab import frame
from advisor.lab.fit.described import known_steps
from advisor.lab.fit.described_columns import MeasuredStep
from advisor.lab.fit.device import fit_errors, left_out_labels, seen_errors, seen_steps, thinned
from advisor.machines.devices import device_parameters, residual_parameters
from advisor.planners.core import Operators, select
from advisor.planners.step.calibrate import SeenErrors, errors_at
from advisor.planners.step.device import KINDS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Learner = Callable[["Steps", Bools], Floats]
NEIGHBOURS: Final = 8
JOB_LENGTH: Final = 0.4  # of ``job_features``, over which steps are near
TOKENS: Final = 48  # that a step is read as: runs of operators in order
PHASES: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Measured steps with the errors of the equation, and what learners see of them."""

    steps: list[MeasuredStep]
    seen: SeenErrors
    labels: Mapping[str, NDArray[np.str_]]
    sheet: Floats  # (n, 8); rates, power, year, and how numbers are stored
    mix: Floats  # (n, 13 + 3); shares of kinds and phases in traffic and operations
    tokens: Floats  # (n, TOKENS, ...)

    @property
    def weights(self) -> Floats:
        """Weights by which sources count alike, up to a root."""
        source = self.labels["source"]
        count = np.array([np.sum(source == one) for one in source])
        return np.asarray(np.sqrt(count.mean() / count))


def read_steps_of_gpus() -> Steps:
    """Return the steps of every suite under the packaged measurements and their mirror."""
    steps = seen_steps(known_steps(data.measurements(None)))
    seen = seen_errors(steps, device_parameters())
    points = seen.points
    power = [(np.log(s.device.tdp_w or 250.0), (s.device.release_year or 2018.0)) for s in steps]
    stored = np.c_[points.precision == "half", points.precision == "stored half"]
    return Steps(
        steps=steps,
        seen=seen,
        labels=left_out_labels(steps),
        sheet=_scaled(np.c_[points.rates, power, stored]),
        mix=np.array([_mix(s.operators) for s in steps]),
        tokens=np.array([_tokens(s.operators) for s in steps]),
    )


def _scaled(columns: Floats) -> Floats:
    return np.asarray((columns - columns.mean(axis=0)) / np.maximum(columns.std(axis=0), 1e-9))


def _mix(operators: Operators) -> Floats:
    """Return the shares of kinds in operations and traffic, and of phases in calls."""
    amounts = np.stack([operators.flop, operators.bytes, operators.kernels], axis=1)
    shares = amounts / np.maximum(amounts.sum(axis=0), 1.0)
    kinds = np.array([KINDS.index(kind) for kind in operators.kind])
    phases = np.array([PHASES.index(phase) for phase in operators.phase])
    by_kind = np.array([np.bincount(kinds, s, len(KINDS)) for s in shares[:, :2].T]).ravel()
    return np.asarray(np.r_[by_kind, np.bincount(phases, shares[:, 2], len(PHASES))])


def _tokens(operators: Operators) -> Floats:
    """Return a step as ``TOKENS`` runs of operators in order: their mix and their sizes."""
    found = []
    for part in np.array_split(np.arange(len(operators)), min(TOKENS, len(operators))):
        ran = select(operators, part)
        flop, moved, calls = (float(one.sum()) for one in (ran.flop, ran.bytes, ran.kernels))
        sizes = np.log([max(flop / calls, 1.0), max(moved / calls, 1.0), calls]) / 10.0
        found.append(np.r_[_mix(ran), sizes])
    width = len(found[0])
    return np.array([*found, *(np.zeros(width) for _ in range(TOKENS - len(found)))])


# Learners: each predicts the errors of what is left out.


def _process(known: Steps, out: Bools) -> Floats:
    seen = known.seen.take(~out)
    kept = [s for s, is_out in zip(known.steps, out, strict=True) if not is_out]
    fitted = fit_errors(seen, thinned(kept, 1), left_out_labels(kept))
    return errors_at(known.seen.points.take(out), np.zeros(int(out.sum()), bool), fitted).mean


def _nothing(known: Steps, out: Bools) -> Floats:
    return np.zeros(int(out.sum()))


def _nearest(known: Steps, out: Bools) -> Floats:
    place = np.c_[known.seen.points.job / JOB_LENGTH, known.sheet]
    apart = np.square(place[out][:, None] - place[~out]).sum(axis=2)
    near = np.argsort(apart, axis=1)[:, :NEIGHBOURS]
    weight = np.exp(-0.5 * np.take_along_axis(apart, near, 1))
    # As much weight on no correction at all as on a step half a length away.
    return np.asarray((weight * known.seen.of_peaks[~out][near]).sum(1) / (weight.sum(1) + 0.5))


def _trees(known: Steps, out: Bools) -> Floats:
    import xgboost as xgb

    columns = np.c_[known.mix, known.seen.points.job, known.sheet]
    settings = {
        "objective": "reg:absoluteerror", "max_depth": 3, "learning_rate": 0.05, "subsample": 0.7,
        "colsample_bytree": 0.5, "min_child_weight": 5, "reg_lambda": 5, "seed": 0, "nthread": 1,
        "base_score": 0.0,
    }  # fmt: skip
    rows = xgb.DMatrix(columns[~out], known.seen.of_peaks[~out], weight=known.weights[~out])
    return np.asarray(xgb.train(settings, rows, 150).predict(xgb.DMatrix(columns[out])), float)


def network_of(epochs: int) -> Learner:
    """Return the learner of a recurrent network."""

    def learner(known: Steps, out: Bools) -> Floats:
        import torch
        from torch import nn

        torch.manual_seed(0)
        tokens, sheet = (
            torch.tensor(v, dtype=torch.float32)
            for v in (known.tokens, np.c_[known.sheet, known.seen.points.job])
        )
        target, weight = (
            torch.tensor(v, dtype=torch.float32) for v in (known.seen.of_peaks, known.weights)
        )

        class Network(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.reads = nn.GRU(tokens.shape[2], 24, batch_first=True)
                self.says = nn.Sequential(
                    nn.Linear(24 + sheet.shape[1], 32), nn.ReLU(), nn.Dropout(0.2),
                    nn.Linear(32, 1),
                )  # fmt: skip

            def forward(self, rows: torch.Tensor) -> torch.Tensor:
                read, _ = self.reads(tokens[rows])
                said: torch.Tensor = self.says(torch.cat([read.mean(1), sheet[rows]], 1))[:, 0]
                return said

        network, kept = Network(), np.flatnonzero(~out)
        learning = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.05)
        draw = np.random.default_rng(0)
        for epoch in range(epochs):
            for group in learning.param_groups:
                group["lr"] = 3e-3 * (1 - epoch / epochs)
            for part in np.array_split(draw.permutation(kept), max(len(kept) // 64, 1)):
                rows = torch.tensor(part)
                off = (network(rows) - target[rows]).abs() * weight[rows]
                learning.zero_grad()
                off.mean().backward()
                learning.step()
        network.eval()
        with torch.no_grad():
            return np.asarray(network(torch.tensor(np.flatnonzero(out))).numpy(), float)

    return learner


def left_out_errors(known: Steps, learners: Mapping[str, Learner], way: str, folds: int) -> Floats:
    """Return each learner's prediction of every error, its group left out, (n, learners)."""
    groups = known.labels[way]
    names = np.random.default_rng(0).permutation(np.unique(groups))
    found = np.zeros((len(groups), len(learners)))
    for part in np.array_split(names, min(folds, names.size)):
        out = np.isin(groups, part)
        for i, learner in enumerate(learners.values()):
            found[out, i] = learner(known, out)
    return found


def balanced(known: Steps, predicted: Floats) -> tuple[float, float]:
    """Return the mean over sources of the mean and of the median error, as fractions."""
    off = np.abs(np.expm1(predicted - known.seen.of_peaks))
    source = known.labels["source"]
    parts = [off[source == one] for one in np.unique(source)]
    return float(np.mean([p.mean() for p in parts])), float(np.mean([np.median(p) for p in parts]))


def table(known: Steps, learners: Mapping[str, Learner], folds: int) -> list[str]:
    """Return the lines of the table: learners and their averages by what is left out."""
    names = list(learners)
    averages = [("process", other) for other in names if other not in ("nothing", "process")]
    ways = list(known.labels)
    rows: dict[str, list[str]] = {name: [] for name in (*names, *map(" and ".join, averages))}
    for way in ways:
        found = dict(zip(names, left_out_errors(known, learners, way, folds).T, strict=True))
        found |= {
            " and ".join(pair): np.mean([found[n] for n in pair], axis=0) for pair in averages
        }
        for name, predicted in found.items():
            mean, median = balanced(known, predicted)
            rows[name].append(f"{100 * mean:.1f} / {100 * median:.1f}")
    lines = ["| mean / median error, % | " + " | ".join(f"{w} out" for w in ways) + " |"]
    lines.append("|---" * (len(ways) + 1) + "|")
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]


def own_machines(known: Steps, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return mean and median error over machines by how many of its networks are known."""
    shipped, points = residual_parameters(), known.seen.points
    names = np.array([s.model for s in known.steps])
    found: dict[str, list[tuple[float, float]]] = {}
    for host in np.unique(points.host[points.host != ""]):
        on = points.host == host
        others = ~np.isin(points.device, np.unique(points.device[on]))
        drawn = np.random.default_rng(seed).permutation(np.unique(names[on]))
        half = drawn[: len(drawn) // 2]
        asked = on & ~np.isin(names, half)
        for what, told in (("none", half[:0]), ("three", half[:3]), ("half", half)):
            process = replace(shipped, seen=known.seen.take(others | (on & np.isin(names, told))))
            at = points.take(asked)
            mean = errors_at(at, np.zeros(len(at), bool), process).mean
            off = np.abs(np.expm1(mean - known.seen.of_peaks[asked]))
            found.setdefault(what, []).append((float(off.mean()), float(np.median(off))))
    return {
        what: (float(np.mean([a for a, _ in each])), float(np.mean([b for _, b in each])))
        for what, each in found.items()
    }


def main() -> None:
    """Print the table."""
    given = frame.options(
        __doc__,
        {"--folds": (5, "groups of what is left out"), "--epochs": (30, "of the network"),
         "--own": False},
    )  # fmt: skip
    learners: dict[str, Learner] = {
        "nothing": _nothing, "process": _process, "nearest": _nearest, "trees": _trees,
        "network": network_of(given.epochs),
    }  # fmt: skip
    known = read_steps_of_gpus()
    print(f"{len(known.steps)} steps of {len(np.unique(known.labels['source']))} sources")
    if given.own:
        for what, (mean, median) in own_machines(known).items():
            print(f"{what} known: mean {100 * mean:.1f} %, median {100 * median:.1f} %")
        return
    print("\n".join(table(known, learners, given.folds)))


if __name__ == "__main__":
    main()
