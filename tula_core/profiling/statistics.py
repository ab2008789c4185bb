"""Robust figures from a few noisy durations. All pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

_BOUND = 5.0  # median deviations
_NOISE = 0.25  # coefficient of variation of a step on a shared machine, where too few were timed to tell
_FEW = 5
PARTS = ("loader_s", "compute_s", "communication_s", "optimizer_s")


def robust_mean(values: Sequence[float]) -> float:
    """Return the mean after values beyond 5 median absolute deviations from the median are set to that bound.

    The median alone would leave out slow steps that a run has to pay for; the plain mean would be ruled by one hiccup.

    >>> robust_mean([1.0, 1.1, 0.9, 1.0, 9.0]) < 1.2
    True
    """
    return math.fsum(winsorised(values)) / len(values)


def winsorised(values: Sequence[float]) -> list[float]:
    """Return the values with those beyond 5 median absolute deviations set to that bound."""
    middle = statistics.median(values)
    reach = _BOUND * statistics.median(abs(value - middle) for value in values)
    return [min(max(value, middle - reach), middle + reach) for value in values]


def standard_error(blocks: Sequence[Sequence[float]]) -> float:
    """Return the standard error of the robust mean over steps that were timed in separate blocks.

    The larger of what the scatter of steps and the scatter of block means say: a drift between blocks is seen by the
    second alone. With fewer than five steps it is at least what a shared machine usually shows.
    """
    values = winsorised([value for block in blocks for value in block])
    count, mean = len(values), math.fsum(values) / len(values)
    error = statistics.stdev(values) / math.sqrt(count) if count > 1 else 0.0
    means = [robust_mean(block) for block in blocks if block]
    if len(means) > 1:
        error = max(error, statistics.stdev(means) / math.sqrt(len(means)))
    if count < _FEW:
        error = max(error, _NOISE * mean / math.sqrt(count))
    return error


def block_scatter(blocks: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation of ln(mean) over blocks of steps that were timed apart, None with fewer than two.

    What the machine's speed does between blocks it will do between the probe and the run.
    """
    means = [math.log(max(robust_mean(block), 1e-12)) for block in blocks if block]
    return statistics.stdev(means) if len(means) > 1 else None


def parts_of_step(measured: Mapping[str, float], step_time_s: float) -> dict[str, float]:
    """Return the parts scaled to sum to the step: clocked steps wait for the device more often than timed ones."""
    positive = {name: max(0.0, measured.get(name, 0.0)) for name in PARTS}
    total = math.fsum(positive.values())
    if total <= 0.0:
        return {**dict.fromkeys(PARTS, 0.0), "compute_s": step_time_s}
    return {name: value * step_time_s / total for name, value in positive.items()}


def drift(first: Mapping[int, float], last: Mapping[int, float]) -> float:
    """Return the median over the sizes of last/first - 1, the change of speed during a sweep; 0 without a pair."""
    changes = [last[size] / first[size] - 1.0 for size in first if size in last and first[size] > 0]
    return statistics.median(changes) if changes else 0.0


def forecast_peak(peaks: Sequence[tuple[int, int]], base_bytes: int, size: int) -> float:
    """Return the memory a local batch of ``size`` may need, from peaks of smaller ones, never below the last.

    Memory is affine in the local batch (activations) above a fixed part. Two growing steps in a row give the line,
    taken with a tenth more. Otherwise, as where an evaluation batch hides the growth, all that was needed above
    ``base_bytes`` is taken to grow in proportion, which is more than can happen.
    """
    last_size, last_peak = peaks[-1]
    if len(peaks) >= 3 and peaks[-3][1] < peaks[-2][1] < last_peak:
        slope = (last_peak - peaks[-2][1]) / (last_size - peaks[-2][0])
        return last_peak + 1.1 * slope * (size - last_size)
    return last_peak + max(0, last_peak - base_bytes) * (size / last_size - 1.0)
