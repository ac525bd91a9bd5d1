"""A network over the series of the partial run beside the static features, as in the thesis.

The series branch (GRU, or a temporal convolution) reads the four channels CPU, memory, network in,
network out; its summary joins the static features, and a perceptron answers. Rows are
``[static | channel 1 | ... | channel C]``, each channel ``readings`` long, so that the estimator
takes a plain matrix like the others.

Presets of the Nazari thesis: cost by Huber loss (delta 1) and Adam 1e-4, time by Poisson loss and
Adam 8e-4, betas (0.5, 0.999), 400 epochs, batches of 32, the target itself. Its layers are not
published: two GRU layers of 64 and perceptrons of 64 are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from advisor.errors import ModelError
from advisor.learned.base import Floats, RunRegressor, State
from advisor.learned.intervals import Scaling
from advisor.learned.splits import group_folds
from advisor.learned.tasks import tell_inside

Loss = Literal["huber", "poisson"]
Branch = Literal["gru", "tcn"]

_STOP_FOLDS: Final = 6  # one sixth of the groups decides when to stop
_LEAST_TO_STOP: Final = 6
_DILATIONS: Final = (1, 2, 4, 8)  # kernel 3: the last layer sees 31 readings
_HINT: Final = "the file was changed or cut: fit the model again"


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceNetwork(RunRegressor):
    """GRU or TCN over the series, perceptron over the static features, joined.

    Attributes
    ----------
    epochs_ : int
        Epochs after which the kept weights stood.
    """

    # channels, readings: the last ``channels * readings`` columns are series; 0 channels is a
    # plain perceptron
    channels: int = 0
    readings: int = 0
    branch: Branch = "gru"
    width: int = 32
    # poisson takes positive targets and answers positive ones; Huber's delta is 1 in units of the
    # target's standard deviation where ``is_scaled``, else of the target
    loss: Loss = "huber"
    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epochs: int = 200
    batch: int = 64
    # epochs without gain on a sixth of the groups before it stops; None makes every epoch
    patience: int | None = 20
    weight_decay: float = 1e-3
    is_scaled: bool = True  # standardise the target while learning
    calibration_folds: int = 5

    @classmethod
    def thesis(cls, target: Literal["time", "cost"], **settings: Any) -> SequenceNetwork:
        """Return the preset of the Nazari thesis for one of its two models."""
        preset: dict[str, Any] = {
            "width": 64, "betas": (0.5, 0.999), "epochs": 400, "batch": 32, "patience": None,
            "weight_decay": 0.0, "is_scaled": False,
        }  # fmt: skip
        if target == "cost":
            return cls(**{**preset, "loss": "huber", "learning_rate": 1e-4, **settings})
        return cls(**{**preset, "loss": "poisson", "learning_rate": 8e-4, **settings})

    @property
    def _is_multiplicative(self) -> bool:  # type: ignore[override]
        return self.loss == "poisson"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        tags.regressor_tags.poor_score = True  # too few epochs for the checks' toy data
        tags.non_deterministic = False
        return tags

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        import torch

        if self.loss == "poisson" and np.any(r < 0):
            raise ValueError(f"Poisson loss needs y >= 0, got {r.min()}")
        static, _ = self._parts(X)
        self.scaling_ = Scaling.fit(static)
        is_level = self.is_scaled and self.loss == "huber"
        self.level_ = float(np.mean(r)) if is_level else 0.0
        self.unit_ = float(np.std(r) if is_level else np.mean(r)) if self.is_scaled else 1.0
        self.unit_ = max(self.unit_, 1e-12)
        torch.manual_seed(self.random_state)
        network = self._network(static.shape[1])
        inputs = self._tensors(X)
        target = torch.tensor((r - self.level_) / self.unit_, dtype=torch.float32)
        train, test = np.arange(len(r)), None
        if self.patience is not None and np.unique(groups).size >= _LEAST_TO_STOP:
            train, test = next(iter(group_folds(groups, _STOP_FOLDS, self.random_state)))
        self.weights_, self.epochs_ = self._train(network, inputs, target, train, test)

    def _train(
        self, network: Any, inputs: Any, target: Any, train: Any, test: Any
    ) -> tuple[dict[str, Floats], int]:
        """Return the best weights and the epoch they stood at."""
        import torch

        optimizer = torch.optim.AdamW(
            network.parameters(), lr=self.learning_rate, betas=self.betas,
            weight_decay=self.weight_decay,
        )  # fmt: skip
        order = np.random.default_rng(self.random_state)
        best, best_loss, best_epoch = None, np.inf, 0
        for epoch in range(1, self.epochs + 1):
            tell_inside("epochs of the network", epoch - 1, self.epochs)
            network.train()
            for rows in np.array_split(
                order.permutation(train), max(1, round(len(train) / self.batch))
            ):
                optimizer.zero_grad()
                loss = self._loss(network(*(part[rows] for part in inputs)), target[rows])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                optimizer.step()
            if test is None:
                continue
            network.eval()
            with torch.no_grad():
                left_out = float(
                    self._loss(network(*(part[test] for part in inputs)), target[test])
                )
            if left_out < best_loss:
                best, best_loss, best_epoch = _weights(network), left_out, epoch
            elif epoch - best_epoch >= (self.patience or self.epochs):
                break
        return (_weights(network), self.epochs) if best is None else (best, best_epoch)

    def _loss(self, answer: Any, target: Any) -> Any:
        import torch.nn.functional as F  # noqa: N812

        if self.loss == "poisson":
            return F.poisson_nll_loss(answer, target, log_input=False, full=False)
        return F.huber_loss(answer, target, delta=1.0)

    def _network(self, statics: int) -> Any:
        return _build(self.branch, self.channels, statics, self.width, self.loss == "poisson")

    def _parts(self, X: Floats) -> tuple[Floats, Floats]:
        cut = X.shape[1] - self.channels * self.readings
        if cut < 0:
            raise ValueError(
                f"{X.shape[1]} columns are fewer than {self.channels} x {self.readings} readings"
            )
        series = np.nan_to_num(X[:, cut:]).reshape(len(X), self.channels, self.readings)
        return X[:, :cut], series

    def _tensors(self, X: Floats) -> tuple[Any, Any]:
        import torch

        static, series = self._parts(X)
        scaled = torch.tensor(self.scaling_.apply(static), dtype=torch.float32)
        return scaled, torch.tensor(series, dtype=torch.float32)

    def _answer(self, X: Floats) -> Floats:
        import torch

        inputs = self._tensors(X)
        network = self._network(inputs[0].shape[1])
        network.load_state_dict({k: torch.tensor(v) for k, v in self.weights_.items()})
        network.eval()
        with torch.no_grad():
            answer = network(*inputs).numpy().astype(float)
        return np.asarray(self.level_ + self.unit_ * answer)

    def state(self) -> State:
        return {
            "scaling": self.scaling_.state(), "level": self.level_, "unit": self.unit_,
            "epochs": self.epochs_, "network": dict(self.weights_),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        self.scaling_ = Scaling.from_state(state["scaling"])
        self.level_, self.unit_ = float(state["level"]), float(state["unit"])
        self.epochs_ = int(state["epochs"])
        self.weights_ = dict(state["network"])
        expected = self._network(self.n_features_in_ - self.channels * self.readings)
        shapes = {k: tuple(v.shape) for k, v in expected.state_dict().items()}
        if shapes != {k: tuple(v.shape) for k, v in self.weights_.items()}:
            raise ModelError("the network's weights have other shapes", hint=_HINT)


def _weights(network: Any) -> dict[str, Floats]:
    return {k: v.detach().cpu().numpy().copy() for k, v in network.state_dict().items()}


def _build(branch: Branch, channels: int, statics: int, width: int, is_positive: bool) -> Any:
    """Return the torch module; built in a function so that torch is imported only here."""
    import torch
    from torch import nn

    class Joined(nn.Module):
        """Both branches and what answers."""

        def __init__(self) -> None:
            super().__init__()
            self.static = nn.Sequential(nn.Linear(statics, width), nn.ReLU())
            if channels and branch == "gru":
                self.series: Any = nn.GRU(channels, width, num_layers=2, batch_first=True)
            elif channels:
                layers: list[Any] = []
                for i, dilation in enumerate(_DILATIONS):
                    layers += [
                        nn.Conv1d(
                            channels if i == 0 else width, width, 3,
                            padding=dilation, dilation=dilation,
                        ),
                        nn.ReLU(),
                    ]  # fmt: skip
                self.series = nn.Sequential(*layers)
            joined = 2 * width if channels else width
            self.head = nn.Sequential(nn.Linear(joined, width), nn.ReLU(), nn.Linear(width, 1))

        def forward(self, static: Any, series: Any) -> Any:
            """Return one number a row, shape (B,)."""
            parts = [self.static(static)]
            if channels and branch == "gru":
                _, last = self.series(series.transpose(1, 2))
                parts.append(last[-1])
            elif channels:
                parts.append(self.series(series).mean(dim=2))
            answer = self.head(torch.cat(parts, dim=1)).squeeze(1)
            return nn.functional.softplus(answer) if is_positive else answer

    return Joined()
