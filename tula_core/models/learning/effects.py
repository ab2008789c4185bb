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

    def drawn(self, normal: Array) -> tuple[Array, Array, Array]:
        """Return ln of the factors on critical batch, work and gap, each of shape (draws, n).

        Parameters
        ----------
        normal
            Standard normal draws of shape (draws, 3).
        """
        critical, work, gap = (self.rows[:, 2 * i] + normal[:, i : i + 1] * self.rows[:, 2 * i + 1] for i in range(3))
        return critical, work, gap

    def as_steep(self, batches: Array, reference: float) -> Array:
        """Return B0 (B/B0)^power above B0: where the pilots' rule has the rate that each batch is trained with."""
        power = self.rows[:, _FACTORS]
        moved = (batches > reference) & (power != 1.0)
        return np.where(moved, reference * (batches / reference) ** power, batches)


def distinct(batches: Array, effects: Effects | None) -> tuple[Array, Effects | None, NDArray[np.intp]]:
    """Return the batches and effects that differ, and where each of the given ones is among them."""
    if effects is None:
        unique, where = np.unique(batches, return_inverse=True)
        return unique, None, where
    rows, where = np.unique(np.column_stack([batches, effects.rows]), axis=0, return_inverse=True)
    return rows[:, 0], Effects(rows=rows[:, 1:]), where
