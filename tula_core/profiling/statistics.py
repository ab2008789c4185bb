"""Robust figures from a few noisy durations. All pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

_BOUND = 5.0  # median deviations
NOISE = 0.25  # coefficient of variation of a step on a shared machine, where too few were timed to tell
_FEW = 5
_LONG_STALL = 10.0  # steps; what stops a process for longer is the machine's and not a rhythm of the training
PARTS = ("loader_s", "compute_s", "communication_s", "optimizer_s")


def robust_mean(values: Sequence[float]) -> float:
    """Return the mean after a lone stall is set to 5 median absolute deviations from the median.

    The median alone would leave out slow steps that a run has to pay for; the plain mean would be ruled by one hiccup.

    >>> robust_mean([1.0, 1.1, 0.9, 1.0, 9.0]) < 1.2
    True
    >>> robust_mean([1.0, 1.0, 1.0, 10.0, 1.0, 1.0, 1.0, 10.0])
    3.25
    """
    return math.fsum(winsorised(values)) / len(values)


def winsorised(values: Sequence[float]) -> list[float]:
    """Return the values with those set back that lie beyond 5 median absolute deviations and do not recur.

    A value counts as far as another one goes that is not its neighbour: what a machine does once, perhaps across the
    end of a step, is clipped, and a pattern that recurs, as of the rounds of loader workers, is kept whole.
    """
    middle = statistics.median(values)
    reach = _BOUND * statistics.median(abs(value - middle) for value in values)
    high = max(middle + reach, _seen_again(values))
    low = min(middle - reach, -_seen_again([-value for value in values]))
    return [min(max(value, low), high) for value in values]


def _seen_again(values: Sequence[float]) -> float:
    """Return the largest value beside the largest of all and its neighbours, -inf without one."""
    top = max(range(len(values)), key=values.__getitem__)
    return max((value for index, value in enumerate(values) if abs(index - top) > 1), default=-math.inf)


def rounds_of(values: Sequence[float], length: int) -> list[float]:
    """Return the means of successive rounds of ``length`` values, what does not fill the last one left out.

    >>> rounds_of([1.0, 3.0, 2.0, 4.0, 9.0], 2)
    [2.0, 3.0]
    """
    starts = range(0, len(values) - length + 1, length)
    return [math.fsum(values[start : start + length]) / length for start in starts]


def standard_error(blocks: Sequence[Sequence[float]]) -> float:
    """Return the standard error of the robust mean over steps that were timed in separate blocks.

    The larger of what the scatter of steps and the scatter of block means say: a drift between blocks is seen by the
    second alone. With fewer than five steps it is at least what a shared machine usually shows. A stall that was
    clipped may be the first of many: as far as it is no longer than ten steps, it is a doubt about the mean.
    """
    raw = [value for block in blocks for value in block]
    values = winsorised(raw)
    count, mean = len(values), math.fsum(values) / len(values)
    error = statistics.stdev(values) / math.sqrt(count) if count > 1 else 0.0
    means = [robust_mean(block) for block in blocks if block]
    if len(means) > 1:
        error = max(error, statistics.stdev(means) / math.sqrt(len(means)))
    if count < _FEW:
        error = max(error, NOISE * mean / math.sqrt(count))
    clipped = math.fsum(abs(before - after) for before, after in zip(raw, values, strict=True))
    return math.hypot(error, min(clipped, _LONG_STALL * mean) / count)


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
