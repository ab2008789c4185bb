"""The scale of one job's measurements, which makes the learnt prior free of seconds and of batch sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.law import NAMES, TIMES, index
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Time and local batch of the smallest and of the largest measured batch on the fewest processes."""

    small_s: float
    large_s: float
    small_batch: float
    large_batch: float

    @classmethod
    def of(cls, shapes: Shapes, time_s: Array) -> Scale:
        """Return the scale of measured steps, one or more."""
        per_micro = time_s / shapes.accumulation
        few = shapes.processes == shapes.processes.min()
        batch, time = shapes.local_batch[few], per_micro[few]
        low, high = batch == batch.min(), batch == batch.max()
        return cls(
            small_s=float(np.exp(np.log(time[low]).mean())),
            large_s=float(np.exp(np.log(time[high]).mean())),
            small_batch=float(batch.min()),
            large_batch=float(batch.max()),
        )

    def map(self) -> tuple[Array, Array]:
        """Return offset (p,) and matrix (p, p) with theta = offset + matrix relative.

        Seconds count from the smallest batch's step; the slope is the share of it in the largest batch's step, so that
        its prior does not depend on the exponent. What a message costs whatever its size is a share of what its size
        costs: slow links are slow in both.
        """
        offset, matrix = np.zeros(len(NAMES)), np.eye(len(NAMES))
        for name in TIMES:
            offset[index(name)] = np.log(self.small_s)
        offset[index("slope_s")] = np.log(self.large_s)
        matrix[index("slope_s"), index("exponent")] = -np.log(self.large_batch)
        offset[index("loader_slope_s")] -= np.log(self.small_batch)
        for link in ("inside", "between"):
            fixed, size = index(f"{link}_fixed_s"), index(f"{link}_size_s")
            offset[fixed], matrix[fixed, size] = offset[size], 1.0
        return offset, matrix
