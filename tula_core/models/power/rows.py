"""`PowerRows`: measured or asked epochs of one accelerator, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerRows:
    """Epochs of several works on one kind of accelerator, all arrays of shape (n,).

    Attributes
    ----------
    work
        Number of the work (network, data and optimizer) from 0.
    batch, limit_w
        Batch size in samples, power limit in watts.
    """

    work: NDArray[np.int_]
    batch: Array
    limit_w: Array

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _check("batch", self.batch)
        _check("limit_w", self.limit_w)

    def at_limit(self, limit_w: float) -> PowerRows:
        """Return the same rows under one limit."""
        return PowerRows(work=self.work, batch=self.batch, limit_w=np.full_like(self.limit_w, limit_w))


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRows:
    """Rows with their measured seconds per epoch and mean watts, each of shape (n,).

    Raises
    ------
    InputError
        There is no row, or a number is not finite and above zero.
    """

    asked: PowerRows
    time_s: Array
    power_w: Array

    def __post_init__(self) -> None:
        """Refuse what cannot have been measured."""
        if not len(self.time_s):
            raise InputError("power: no measured row is given, at least one is needed. Measure one epoch.")
        _check("time_s", self.time_s)
        _check("power_w", self.power_w)


def _check(name: str, values: Array) -> None:
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        first = int(bad.argmax())
        raise InputError(
            f"power: {name} of row {first + 1} must be a finite number above 0, got {values[first]!r}. "
            "Mend that row or leave it out."
        )
