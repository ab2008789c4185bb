"""The energy of a window on all machines of a run together, the same on every process."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from tula_core.engine.power.find import worker_meter
from tula_core.engine.power.meter import Energy, Mark, PowerMeter

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext

_SUMMED = ("total_j", "accelerators_j", "counter_j", "integrated_j")


class RunMeter:
    """Meters every machine of a run; made, and asked for energy, by all processes together.

    Attributes
    ----------
    available
        Whether every machine has a meter. Where it is False no energy is known and asking costs nothing.
    note
        Why there is none, or what is not metered, on rank 0's machine.
    """

    def __init__(self, context: WorkerContext, meter: PowerMeter | None = None) -> None:
        self._context = context
        self._meter = worker_meter(context) if meter is None else meter
        self._reads = os.environ.get("LOCAL_RANK", "0") == "0"
        self.note = self._meter.note
        blind = self._reads and not self._meter.sources
        self.available = context.all_reduce_max([float(blind)])[0] == 0.0
        if self.available:
            self._meter.start()

    def mark(self) -> Mark:
        """Return this moment's reading on this process."""
        return self._meter.mark()

    def since(self, begin: Mark) -> Energy:
        """Return the energy since a mark, summed over machines; a figure that one machine lacks is None."""
        own = self._meter.between(begin, self._meter.mark())
        if not self.available:
            return Energy(seconds=own.seconds)
        values = [getattr(own, name) for name in _SUMMED]
        lacking = [float(self._reads and value is None) for value in values]
        sums = self._context.all_reduce_sum([float(value or 0.0) for value in values] + lacking)
        total_j, accelerators_j, counter_j, integrated_j = (
            None if sums[len(_SUMMED) + index] > 0 else sums[index] for index in range(len(_SUMMED))
        )
        return replace(
            own,
            total_j=total_j,
            accelerators_j=accelerators_j,
            counter_j=counter_j,
            integrated_j=integrated_j,
        )

    def close(self) -> None:
        """Stop reading."""
        self._meter.close()


def plain(energy: Energy) -> dict[str, float | str | None]:
    """Return energy as plain JSON values, by the names of its fields."""
    values = {field.name: getattr(energy, field.name) for field in fields(energy)}
    assert all(not isinstance(value, float) or math.isfinite(value) for value in values.values())
    return values
