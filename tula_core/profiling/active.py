"""What to time next: that which is worth most to the choice for its seconds. All pure.

After a first screen the probe's time goes to what may change the choice: within a world to the local batches that may
still be the best, see `tula_core.profiling.active_worlds` for what happens between worlds. Measuring stops where all
that is still unknown is worth less than `SETTLED`.

What is chosen is worth ln(step time x steps to train), the steps by the usual law of the critical batch, with
node-hours counted as much as the objective weighs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Job
from tula_core.models.decision.beliefs import log_steps
from tula_core.models.decision.information import Belief, expected_regret, knowledge_gradient

Array = NDArray[np.float64]

SETTLED = 0.01
"""Share of the time to train, or of its cost, for which nothing more is measured."""
FEWEST_SPREAD = 3
"""So many configurations are timed in several blocks in any case: they tell how the machine's speed changes."""
BLOCK_SD = 0.03
"""Log standard deviation of a block's mean beside its own scatter: what a machine does from one minute to the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What a world knows of one local batch.

    ``log_weight`` is added to the logarithm of the step time; ``relative_error`` is the standard error of the step time
    over itself, after ``blocks`` blocks of steps, the next of which takes ``block_s`` seconds.
    """

    step_time_s: float
    relative_error: float
    log_weight: float
    blocks: int
    block_s: float

    @property
    def log_value(self) -> float:
        """Logarithm of the objective."""
        return math.log(self.step_time_s) + self.log_weight

    @property
    def sd(self) -> float:
        """Standard deviation of `log_value` that more blocks would lower."""
        return math.hypot(self.relative_error, BLOCK_SD / math.sqrt(max(self.blocks, 1)))


def log_weights(job: Job, processes: Array, nodes: Array, local_batch: Array, critical_batch: float) -> Array:
    """Return what is added to ln(step time) for ln(objective): ln(steps to train) + share of cost x ln(nodes).

    The knee weighs time and cost alike; energy is taken to go with node-hours.
    """
    shares = {"time": 0.0, "knee": 0.5, "cost": 1.0, "energy": 1.0}
    if isinstance(job.objective, dict):
        share = 1.0 - job.objective.get("time", 0.0) / sum(job.objective.values())
    else:
        share = shares[job.objective]
    return np.asarray(log_steps(processes * local_batch, critical_batch) + share * np.log(nodes))


def next_size(standings: Sequence[Standing], rival: float | None, most_blocks: int) -> tuple[int | None, bool]:
    """Return which local batch gets the next block, None where none does, and whether the choice is settled.

    Parameters
    ----------
    standings
        Of all local batches of this world, at least one.
    rival
        ln(objective) of the best of other worlds, None where there is none.
    most_blocks
        Beyond them a local batch is timed no more.
    """
    belief = _with_rival(standings, rival)
    settled = expected_regret(belief) < SETTLED
    spread = sum(standing.blocks > 1 for standing in standings)
    if settled and spread >= min(FEWEST_SPREAD, len(standings)):
        return None, True
    open_sizes = [index for index, standing in enumerate(standings) if standing.blocks < most_blocks]
    if not open_sizes:
        return None, settled
    best_first = sorted(open_sizes, key=lambda index: (standings[index].blocks, standings[index].log_value))
    if settled:
        return best_first[0], True
    noise = np.array([standings[index].sd * math.sqrt(max(standings[index].blocks, 1)) for index in open_sizes])
    gains = knowledge_gradient(belief, open_sizes, noise) / np.array([standings[i].block_s for i in open_sizes])
    return (open_sizes[int(gains.argmax())] if gains.max() > 0 else best_first[0]), False


def _with_rival(standings: Sequence[Standing], rival: float | None) -> Belief:
    mean = [standing.log_value for standing in standings]
    sd = [standing.sd for standing in standings]
    return Belief.independent(mean, sd) if rival is None else Belief.independent([*mean, rival], [*sd, 0.0])
