"""Rank-weighted noise: micro-batches count by random weights, so that the step is as noisy as a smaller batch's.

Use: large batches whose gap is one of noise and not of too few updates. Cost: none. Hyperparameters: ``small_batch``
(0 for the recipe's) whose noise is wanted; ``until`` (0.7), the share of the run after which no noise is added; it
begins when a warm-up's share has passed. Evidence: none published for this form; multiplicative noise recovers a
small batch's generalisation (Wu et al. 2020, arXiv 1906.07405, abstract). Source: the weights are Tula's own;
covariance after Wu et al. 2020.

>>> variance(global_batch=256, small_batch=64, groups=8)
3.0
>>> variance(global_batch=64, small_batch=64, groups=8)
0.0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tula_core.mitigations.method import Method, Setting


def variance(global_batch: int, small_batch: int, groups: int) -> float:
    """Return v = B/b - 1, at most M - 1: with weights of variance v the noise of B is that of b.

    The mean of M group gradients, weighted by u with E u = 1, Var u = v and sum u = M, has the covariance (1 + v)
    Sigma/B, for the groups are independent. v = M - 1 takes one group alone.
    """
    return float(min(max(global_batch / small_batch - 1.0, 0.0), groups - 1.0))


def draw_weights(groups: int, spread: float, seed: int) -> list[float]:
    """Return M weights that are not negative and sum to M, of mean 1 and variance ``spread``.

    u = M Dirichlet(a, ..., a) with a = ((M - 1)/v - 1)/M, whose moments are exact; all ones for no variance, a single M
    for the largest.
    """
    if groups < 2 or spread <= 0:
        return [1.0] * groups
    generator = np.random.default_rng(seed)
    concentration = ((groups - 1) / spread - 1.0) / groups
    if concentration <= 1e-9:
        chosen = int(generator.integers(groups))
        return [float(groups) if index == chosen else 0.0 for index in range(groups)]
    return [float(weight) for weight in groups * generator.dirichlet(np.full(groups, concentration))]


class RankWeights(Method):
    """Weights the loss of each micro-batch; all processes draw the same weights and each takes its own."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        small = int(setting.options["small_batch"]) or setting.recipe.batch_size
        self._variance = variance(setting.global_batch, small, setting.groups)
        self._active = True

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate; the position tells when the noise ends."""
        self._active = samples_seen < self.setting.options["until"] * self.setting.total_samples
        return planned

    def loss_weights(self, micro_batches: int, seed: int) -> Sequence[float] | None:
        """Return this process's weights; a step with fewer micro-batches than planned is left as it is."""
        if not self._active or self._variance <= 0 or micro_batches != self.setting.accumulation:
            return None
        weights = draw_weights(self.setting.groups, self._variance, seed)
        first = self.setting.rank * micro_batches
        return weights[first : first + micro_batches]

    def decided(self) -> dict[str, float]:
        """Return the variance of the weights in force."""
        return {"variance": self._variance if self._active else 0.0}
