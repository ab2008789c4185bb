"""Timing an all-reduce of messages from a few kilobytes up to all gradients."""

from __future__ import annotations

import math
import statistics
import time

import torch
import torch.distributed as dist

from tula_core.profiling.rig import Rig

_SMALLEST_BYTES = 8_000
_SIZES = 5
_REPEATS = 11
_LARGEST_BYTES = 100_000_000  # latency and bandwidth are settled by then


def message_sizes(gradient_bytes: int) -> list[int]:
    """Return 2 to 5 message sizes in bytes, in equal ratios of at least 2 up to the gradients', multiples of 4.

    >>> message_sizes(80_000_000)
    [8000, 80000, 800000, 8000000, 80000000]
    >>> message_sizes(2_000)
    [500, 2000]
    """
    largest = max(4, min(gradient_bytes, _LARGEST_BYTES))
    if largest <= 2 * _SMALLEST_BYTES:
        return sorted({max(4, largest // 4 // 4 * 4), largest // 4 * 4})
    count = min(_SIZES, 1 + int(math.log2(largest / _SMALLEST_BYTES)))
    ratio = (largest / _SMALLEST_BYTES) ** (1 / (count - 1))
    return [round(_SMALLEST_BYTES * ratio**index / 4) * 4 for index in range(count)]


def time_all_reduce(rig: Rig, message_bytes: int, seconds: float) -> float:
    """Return the median seconds of one all-reduce, each time the slowest rank's, within about ``seconds``."""
    tensor = torch.zeros(message_bytes // 4, dtype=torch.float32, device=rig.context.device)
    first = rig.context.all_reduce_max([_once(rig, tensor)])[0]
    repeats = max(3, min(_REPEATS, int(seconds / max(first, 1e-6))))
    own = [_once(rig, tensor) for _ in range(repeats)]
    return statistics.median(rig.context.all_reduce_max(own))


def _once(rig: Rig, tensor: torch.Tensor) -> float:
    rig.context.barrier()
    rig.context.synchronise()
    began = time.perf_counter()
    dist.all_reduce(tensor)
    rig.context.synchronise()
    return time.perf_counter() - began
