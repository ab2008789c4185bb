"""What methods against lost accuracy do to learning, one row for each forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.records.mitigation import MitigationEffect

Array = NDArray[np.float64]

NONE = np.array(MitigationEffect().values())
"""The row of a forecast without any effect."""
_FACTORS = 6  # columns of ln of factors and their sd, before the power of the rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """Rows in the order of `MitigationEffect`'s fields, shape (n, 7)."""

    rows: Array

    @classmethod
    def of(cls, methods: Sequence[Sequence[str]], known: Mapping[str, MitigationEffect]) -> Effects:
        """Return the effects of each list of methods: factors and powers multiply, errors are independent.

        A method of which nothing is known is taken to act as it did in the pilots, which is no effect.
        """
        rows = np.tile(NONE, (len(methods), 1))
        for row, names in zip(rows, methods, strict=True):
            each = np.array([known[name].values() for name in names if name in known])
            if len(each):
                row[0:_FACTORS:2] = each[:, 0:_FACTORS:2].sum(axis=0)
                row[1:_FACTORS:2] = np.sqrt((each[:, 1:_FACTORS:2] ** 2).sum(axis=0))
                row[_FACTORS] = each[:, _FACTORS].prod()
        return cls(rows=rows)

    def part(self, block: slice) -> Effects:
        """Return some of the rows."""
        return Effects(rows=self.rows[block])

    def drawn(self, normal: Array) -> tuple[Array, Array, Array]:
        """Return ln of the factors on critical batch, work and gap, each of shape (draws, n); (1, 1) where it has none.

        Parameters
        ----------
        normal
            Standard normal draws of shape (draws, 3).
        """
        critical, work, gap = (self._drawn(i, normal[:, i : i + 1]) for i in range(3))
        return critical, work, gap

    def _drawn(self, factor: int, normal: Array) -> Array:
        mean, sd = self.rows[:, 2 * factor], self.rows[:, 2 * factor + 1]
        return np.asarray(mean + normal * sd) if mean.any() or sd.any() else np.zeros((1, 1))

    def as_steep(self, batches: Array, reference: float) -> Array:
        """Return B0 (B/B0)^power above B0: where the pilots' rule has the rate that each batch is trained with."""
        power = self.rows[:, _FACTORS]
        moved = (batches > reference) & (power != 1.0)
        return np.where(moved, reference * (batches / reference) ** power, batches)


def distinct(
    batches: Array, effects: Effects | None, method: NDArray[np.intp]
) -> tuple[Array, Effects | None, NDArray[np.intp]]:
    """Return the pairs of batch and effect that differ, and which of them each of the given batches has.

    Parameters
    ----------
    batches
        Global batches, shape (n,).
    effects, method
        Effects of some lists of methods, and which of them acts at each batch, shape (n,); None for no effect at all.
    """
    sizes, size = np.unique(batches, return_inverse=True)
    if effects is None:
        return sizes, None, size
    rows, row = np.unique(effects.rows, axis=0, return_inverse=True)
    pairs, where = np.unique(size * len(rows) + row[method], return_inverse=True)
    return sizes[pairs // len(rows)], Effects(rows=rows[pairs % len(rows)]), where
