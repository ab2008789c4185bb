"""What of each stage a run has taken by the end of each epoch: samples, steps, evaluations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.time import Shapes
from tula_core.models.totals import steps_per_epoch
from tula_core.records.candidate import Stage

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """A run through its stages; the tables have shape (epochs + 1, stages), their first row is zero.

    Attributes
    ----------
    shapes
        The stages' layouts, shape (stages,).
    samples, steps, evaluations
        Seen, taken and made in each stage by the end of each epoch.
    world
        Number of the world of processes that each stage runs in; processes are started anew for each.
    """

    shapes: Shapes
    samples: Array
    steps: Array
    evaluations: Array
    world: NDArray[np.intp]

    @property
    def epochs(self) -> int:
        """Epochs of the whole run."""
        return len(self.samples) - 1

    @property
    def opens_world(self) -> NDArray[np.bool_]:
        """Where a stage is the first of its world, shape (stages,)."""
        return np.diff(self.world, prepend=-1) > 0


def walk(stages: Sequence[Stage], train_samples: int, epochs: int) -> Walk:
    """Return what a run takes of each stage.

    A stage that begins within an epoch takes the rest of it in steps of its own, the last of them smaller; one that
    ends within an epoch ends with its first step at or beyond the beginning of the next stage.
    """
    shapes = Shapes.of(stages)
    begin = np.array([stage.from_samples for stage in stages], dtype=float)
    end = np.append(begin[1:], np.inf)
    ends = np.arange(epochs + 1)[:, None] * float(train_samples)
    seen = np.clip(ends, begin, end)
    first_end = np.ceil(begin / train_samples) * train_samples
    head = np.minimum(seen, first_end) - begin
    rest = np.maximum(seen - first_end, 0.0)
    whole = np.floor(rest / train_samples)
    batch = shapes.global_batch
    steps = np.ceil(head / batch) + whole * steps_per_epoch(train_samples, batch)
    steps = steps + np.ceil((rest - whole * train_samples) / batch)
    made = np.cumsum((ends > begin) & (ends <= end), axis=0)
    worlds = [(stage.nodes, stage.processes_per_node) for stage in stages]
    changes = [False, *(now != before for before, now in zip(worlds, worlds[1:], strict=False))]
    return Walk(
        shapes=shapes,
        samples=seen - begin,
        steps=steps,
        evaluations=np.asarray(made, dtype=float),
        world=np.cumsum(changes),
    )
