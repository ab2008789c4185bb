"""`LayoutPlan`: which layout is in force at which moment of a run, in one world of processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tula_core.engine.shares import Layout

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    """Layouts by the samples from which they are in force; the first is in force from 0 on."""

    from_samples: tuple[int, ...]
    layouts: tuple[Layout, ...]

    @classmethod
    def single(cls, layout: Layout) -> LayoutPlan:
        """Return the plan of a run whose batch does not change."""
        return cls(from_samples=(0,), layouts=(layout,))

    @classmethod
    def of(cls, stages: Sequence[Mapping[str, Any]], processes: int) -> LayoutPlan:
        """Return the plan of stages with ``from_samples``, ``local_batch`` and ``accumulation``, ascending."""
        return cls(
            from_samples=tuple(stage["from_samples"] for stage in stages),
            layouts=tuple(
                Layout(processes=processes, local_batch=stage["local_batch"], accumulation=stage["accumulation"])
                for stage in stages
            ),
        )

    def at(self, samples: int) -> Layout:
        """Return the layout in force after ``samples``."""
        return self.layouts[self._index(samples)]

    def end(self, samples: int) -> float:
        """Return the samples at which the next layout takes over, infinity in the last."""
        index = self._index(samples)
        return self.from_samples[index + 1] if index + 1 < len(self.from_samples) else math.inf

    def _index(self, samples: int) -> int:
        return max(index for index, start in enumerate(self.from_samples) if start <= samples or index == 0)


def layout_for(global_batch: int, processes: int, most_local: int) -> Layout:
    """Return the layout of at least ``global_batch`` samples whose local batch is at most ``most_local``.

    >>> layout_for(256, 2, 64)
    Layout(processes=2, local_batch=64, accumulation=2)
    """
    own = max(1, -(-global_batch // processes))
    accumulation = -(-own // most_local)
    return Layout(processes=processes, local_batch=-(-own // accumulation), accumulation=accumulation)


def stage_of(context: WorkerContext, layout: Layout, from_samples: int) -> dict[str, int]:
    """Return a layout that trains from some samples on as the fields of a `Stage`."""
    return {
        "from_samples": from_samples,
        "nodes": context.nodes,
        "processes_per_node": context.processes_per_node,
        "local_batch": layout.local_batch,
        "accumulation": layout.accumulation,
    }
