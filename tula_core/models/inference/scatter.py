"""How much a machine's speed changes from one minute to the next, from what it did during the probe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tula_core.records.profile import StepTiming

_MOST_SCATTER = 0.5  # of one configuration, so that a single stalled block does not rule


def machine_scatter(rows: Sequence[StepTiming]) -> float:
    """Return the root mean square of the block scatter of all configurations, as a log standard deviation.

    0 where no configuration was timed in several blocks. What the speed did between blocks of the probe it will do
    between the probe and the run, however well the mean of the blocks is known.
    """
    scatter = [min(row.block_scatter, _MOST_SCATTER) for row in rows if row.block_scatter is not None]
    return math.sqrt(math.fsum(value**2 for value in scatter) / len(scatter)) if scatter else 0.0
