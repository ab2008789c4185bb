"""Dual batch: some processes take several updates on small batches in the time of one update of the others.

Use: where a large batch loses accuracy for want of updates, and two or more processes train; at the recipe's rate.
Cost: ``extra`` (1.05) times the time of an epoch, and three copies of the weights in memory, which forecasts leave out.
Hyperparameters: ``small_share`` (0.5) of the processes take small batches; ``extra``; ``fixed_samples`` (30, near the
authors' own machine), the samples whose computation takes as long as what a step takes whatever its samples, as step
times at two batch sizes show. Evidence: CIFAR-100 +3.3 points at 10.1 % less time together with progressive resolution
(Lu et al. 2025, abstract); combine it with ``progressive-resolution`` and its ``cycles`` for that. Source: Lu, Hong,
Liu, Wu 2025, arXiv 2509.26092, and its authors' code for the equations. They merge by a parameter server whenever a
process arrives; here all merge where a step of the plan ends, see `tula_core.mitigations.batches.rounds`. On one
process it is plain training, which no plan offers.

>>> [small_batch(2.2595e-4, 6.2339e-3, 5, small, 1000, 1.05) for small in (1, 2, 3, 4)]
[79, 165, 237, 297]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tula_core.errors import InputError

LEAST_SAMPLES = 2
"""In each update, where there are as many: batch norm needs them."""


def small_batch(
    slope_s: float, floor_s: float, processes: int, small_processes: int, large_batch: int, extra: float
) -> int:
    """Return the batch at which small processes end an epoch together with the large ones.

    With a step of b samples taking slope b + floor seconds, an epoch of d samples takes (slope + floor/b) d. Large
    processes take extra D/N samples each; small ones share the rest in the same time t:
    B_S = floor/(t/d_S - slope) (Lu et al. 2025).

    Parameters
    ----------
    slope_s, floor_s
        Seconds per sample and per step.
    processes, small_processes
        N, and how many of them take the small batch; from 1 to N - 1.
    large_batch
        B_L, samples.
    extra
        kappa, at least 1; at 1 the batches are equal.

    Raises
    ------
    InputError
        The large processes would take all samples: there are too few small ones for ``extra``.
    """
    large = processes - small_processes
    each = extra / processes  # of the data set, for a large process
    rest = (1.0 - large * each) / small_processes
    if rest <= 0:
        raise InputError(
            f"dual-batch: extra = {extra:g} leaves {small_processes} small of {processes} processes no samples. "
            f"Give less than {processes / large:.3g}."
        )
    seconds = (slope_s + floor_s / large_batch) * each
    per_sample = seconds / rest - slope_s
    return min(large_batch, max(1, int(floor_s / per_sample + 1e-9)))


@dataclass(frozen=True, kw_only=True, slots=True)
class DualBatch:
    """How the processes share the samples of a step; the last ones are small.

    Attributes
    ----------
    processes, small_processes
        N, and how many of them take small batches.
    factor
        f = d_S/d_L: samples of a small process over those of a large one, and the weight of its updates over theirs.
    large_batch, small_batch
        B_L and B_S, samples in an update.
    """

    processes: int
    small_processes: int
    factor: float
    large_batch: int
    small_batch: int

    def is_small(self, rank: int) -> bool:
        """Return whether a process takes small batches."""
        return rank >= self.processes - self.small_processes

    @property
    def shares(self) -> list[tuple[float, int]]:
        """The weight of each process among the samples of a step, and the samples in an update of its own."""
        small = [self.is_small(rank) for rank in range(self.processes)]
        return [(self.factor, self.small_batch) if is_small else (1.0, self.large_batch) for is_small in small]


def dual_batch(global_batch: int, processes: int, small_share: float, extra: float, fixed_samples: float) -> DualBatch:
    """Return how N processes share the samples of a step; d_L = extra/N, d_S = (1 - n_L d_L)/n_S (Lu et al. 2025).

    Parameters
    ----------
    global_batch
        Samples in a step over all processes; B_L is extra/N of them.
    processes
        N, at least 2.
    small_share
        n_S/N, rounded so that there is a process of each kind.
    extra
        kappa.
    fixed_samples
        Fixed time of a step over the time of a sample.
    """
    small = min(processes - 1, max(1, round(small_share * processes)))
    large_samples = max(1, math.ceil(extra * global_batch / processes - 1e-9))
    batch = small_batch(1.0, fixed_samples, processes, small, large_samples, extra)
    return DualBatch(
        processes=processes,
        small_processes=small,
        factor=(processes / extra - (processes - small)) / small,
        large_batch=large_samples,
        small_batch=max(LEAST_SAMPLES, batch),
    )


def update_sizes(samples: int, update_batch: int) -> list[int]:
    """Return the samples of each update that a process makes of its own, near-equal and about ``update_batch``.

    >>> update_sizes(100, 30), update_sizes(5, 2), update_sizes(3, 1)
    ([25, 25, 25, 25], [3, 2], [3])
    """
    count = max(1, min(-(-samples // update_batch), samples // LEAST_SAMPLES))
    base, more = divmod(samples, count)
    return [base + (index < more) for index in range(count)]


def updates_of(sizes: Sequence[int], update_batch: int) -> list[range]:
    """Return which micro-batches make up each update.

    >>> updates_of([10, 10, 10, 10], 20)
    [range(0, 2), range(2, 4)]
    """
    found, begin = [], 0
    for samples in update_sizes(sum(sizes), update_batch):
        end, left = begin, samples
        while left > 0:
            left -= sizes[end]
            end += 1
        assert left == 0, f"micro-batches of {list(sizes)} do not make up updates of {update_batch}"
        found.append(range(begin, end))
        begin = end
    return found


def noise_over_equal(batches: list[int]) -> float:
    """Return the noise of equally weighted gradients over that of one batch of all samples, at least 1.

    The covariance of the mean of K gradients of b_k samples is Sigma/K^2 sum 1/b_k, that of one batch Sigma/sum b_k.
    """
    count = len(batches)
    return sum(batches) * sum(1.0 / batch for batch in batches) / count**2
