"""AutoWU: the rate rises exponentially until the loss stops falling, then decays; no peak and no length to tune.

Use: an optimizer and batch for which no good rate is known, with LAMB or an adaptive optimizer. Cost: a small fit each
epoch. Hyperparameters: ``lowest`` (1e-5) and ``highest`` (1.0) rate, ``warmup_share`` (0.5) of the run
within which the rate would reach the highest, ``patience`` (3) checks in a row, ``confidence`` (0.95). Evidence:
ResNet-50 at 4,096 75.70 %, at 16,384 75.22 % without tuning (the authors' README). Source: Kim et al. 2021, arXiv
2107.05855.

>>> round(warmup_rate(0.0, 1e-5, 1.0, 0.5), 6), round(warmup_rate(0.25, 1e-5, 1.0, 0.5), 6)
(1e-05, 0.003162)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tula_core.mitigations.method import Method, Setting
from tula_core.seeding import derive_seed

Array = NDArray[np.float64]

LENGTH = 0.2  # of the kernel, in units of the time so far
POINTS = 100  # losses that the curve is fitted to
GRID = 100
DRAWS = 200
LEAST_LOSSES = 8


def warmup_rate(fraction: float, lowest: float, highest: float, warmup_share: float) -> float:
    """Return lowest (highest/lowest)^(fraction/warmup_share), at most ``highest`` (Kim et al. 2021)."""
    return float(lowest * (highest / lowest) ** min(fraction / warmup_share, 1.0))


def chance_past_minimum(times: Array, losses: Array, seed: int) -> tuple[float, float]:
    """Return the chance that the smoothed loss has passed its minimum, and the time of that minimum in [0, 1].

    A Gaussian process with a constant mean and a squared-exponential kernel of length 0.2 is fitted to the losses (Kim
    et al. 2021; Rasmussen and Williams 2006, equations 2.22-2.24). The chance is the largest over times t of
    P(f(t) < f(1)).

    Parameters
    ----------
    times, losses
        Shape (n,), times from 0 to 1 ascending.
    seed
        Of the draws.
    """
    scale = float(np.std(losses)) or 1.0
    values = (losses - float(np.mean(losses))) / scale
    noise = max(float(np.median(np.diff(values) ** 2)) / 2.0 / 0.4549, 1e-4)  # median of a chi-square with one freedom
    grid = np.linspace(0.0, 1.0, GRID)
    inner = _kernel(times, times) + noise * np.eye(len(times))
    cross = _kernel(grid, times)
    weights = np.linalg.solve(inner, np.column_stack([values, cross.T]))
    mean = cross @ weights[:, 0]
    covariance = _kernel(grid, grid) - cross @ weights[:, 1:]
    spread = np.sqrt(np.maximum(np.diag(covariance) + covariance[-1, -1] - 2.0 * covariance[:, -1], 1e-12))
    chances = np.array([_normal(float(z)) for z in (mean[-1] - mean[:-1]) / spread[:-1]])
    return float(chances.max()), float(grid[int(np.argmin(_draws(mean, covariance, seed).mean(axis=0)))])


def _kernel(first: Array, second: Array) -> Array:
    return np.asarray(np.exp(-0.5 * ((first[:, None] - second[None, :]) / LENGTH) ** 2))


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _draws(mean: Array, covariance: Array, seed: int) -> Array:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2.0)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    standard = np.random.default_rng(seed).standard_normal((DRAWS, len(mean)))
    return np.asarray(mean + standard @ root.T)


class AutoWU(Method):
    """Sets the whole rate: exponential warm-up, then a cosine from the rate that the loss was lowest at."""

    sets_rate: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._samples: list[float] = []
        self._losses: list[float] = []
        self._epoch = 0
        self._votes = 0
        self._switched_at: float | None = None
        self._peak = 0.0
        self._rate = 0.0

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the warm-up's rate, or after the switch a cosine from the peak to nothing."""
        options, total = self.setting.options, self.setting.total_samples
        if self._switched_at is None:
            share = options["warmup_share"]
            self._rate = warmup_rate(samples_seen / total, options["lowest"], options["highest"], share)
            if samples_seen >= share * total:
                self._switch(samples_seen, self._rate)
        if self._switched_at is not None:
            done = (samples_seen - self._switched_at) / max(total - self._switched_at, 1.0)
            self._rate = self._peak * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
        return self._rate

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return the first rate of the warm-up and the last."""
        return self.setting.options["lowest"], self.setting.options["highest"]

    def heard(self, loss: float, samples_seen: int) -> None:
        """Keep the loss, and once an epoch look whether it has passed its minimum."""
        if math.isfinite(loss) and self._switched_at is None:
            self._samples.append(float(samples_seen))
            self._losses.append(loss)
        epoch = samples_seen // self.setting.train_samples
        if epoch > self._epoch and self._switched_at is None:
            self._epoch = epoch
            self._look(samples_seen)

    def _look(self, samples_seen: int) -> None:
        if len(self._losses) < LEAST_LOSSES:
            return
        chosen = np.unique(np.linspace(0, len(self._losses) - 1, min(POINTS, len(self._losses))).round().astype(int))
        times, losses = np.array(self._samples)[chosen], np.array(self._losses)[chosen]
        seed = derive_seed(self.setting.seed, "autowu", self._epoch)
        chance, place = chance_past_minimum(times / times[-1], losses, seed)
        self._votes = self._votes + 1 if chance > self.setting.options["confidence"] else 0
        if self._votes >= self.setting.options["patience"]:
            options = self.setting.options
            best = place * float(times[-1]) / self.setting.total_samples
            peak = warmup_rate(best, options["lowest"], options["highest"], options["warmup_share"])
            self._switch(samples_seen, peak)

    def _switch(self, samples_seen: float, peak: float) -> None:
        self._switched_at, self._peak = float(samples_seen), peak

    def state(self) -> dict[str, Any]:
        """Return the losses heard and what was decided."""
        return {
            "samples": list(self._samples),
            "losses": list(self._losses),
            "epoch": self._epoch,
            "votes": self._votes,
            "switched_at": self._switched_at,
            "peak": self._peak,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self._samples, self._losses = _floats(state["samples"]), _floats(state["losses"])
        self._epoch, self._votes = state["epoch"], state["votes"]
        self._switched_at, self._peak = state["switched_at"], state["peak"]

    def decided(self) -> dict[str, float]:
        """Return whether the rate still rises, then the samples at which that ended and the peak, yet unreduced."""
        if self._switched_at is None:
            return {"rising": 1.0}
        return {"rising": 0.0, "switched_at": self._switched_at, "peak_before_reductions": self._peak}


def _floats(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values]
