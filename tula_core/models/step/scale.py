"""The scale of one job's measurements, which makes the learnt prior free of seconds and of batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.law import NAMES, TIMES, index
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

_LEAST_SHARE = 0.1  # of a step that is never communication, whatever a clock says
_ALIKE = 1.1  # batch sizes within this factor of the largest count as the largest
_UNKNOWN_SD = 0.8  # of the floor's and the slope's share where one batch size was measured; halved with each octave


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The least computing seen in a micro-batch, at any and at the largest local batch, and the range of batches."""

    small_s: float
    large_s: float
    small_batch: float
    large_batch: float

    @classmethod
    def of(cls, shapes: Shapes, time_s: Array, parts_s: Mapping[str, Array]) -> Scale:
        """Return the scale of measured steps, one or more; communication is taken off where it was measured."""
        sent = np.nan_to_num(parts_s.get("communication", np.zeros_like(time_s)))
        computing_s = np.maximum(time_s - sent, _LEAST_SHARE * time_s) / shapes.accumulation
        large = shapes.local_batch * _ALIKE >= shapes.local_batch.max()
        return cls(
            small_s=float(computing_s.min()),
            large_s=float(computing_s[large].min()),
            small_batch=float(shapes.local_batch.min()),
            large_batch=float(shapes.local_batch[large].max()),
        )

    def map(self) -> tuple[Array, Array]:
        """Return offset (p,) and matrix (p, p) with theta = offset + matrix relative.

        Seconds count from the least computing seen; the slope is the share of it in the largest batch's step, so that
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

    @property
    def unknown_variance(self) -> Array:
        """Variance (p,) to add to the prior: few octaves of batches do not tell the floor's share from the slope's."""
        octaves = np.log2(self.large_batch / self.small_batch)
        variance = np.zeros(len(NAMES))
        variance[[index("floor_s"), index("slope_s")]] = (_UNKNOWN_SD * 0.5**octaves) ** 2
        return variance
