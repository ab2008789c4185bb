"""Worlds of processes: which parts of a staged run are launched one after the other, and where to take one up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tula_core.records import Candidate, Stage

Shape = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Processes that train through some stages without being started anew.

    Attributes
    ----------
    stages
        At least one, all with the same nodes and processes; the last has the largest batch.
    until_samples
        Where the next world takes over, None in the last.
    """

    stages: tuple[Stage, ...]
    until_samples: int | None

    @property
    def nodes(self) -> int:
        """Nodes of each of its stages."""
        return self.stages[0].nodes

    @property
    def processes_per_node(self) -> int:
        """Processes per node of each of its stages."""
        return self.stages[0].processes_per_node

    def payload(self) -> dict[str, Any]:
        """Return what its workers are told of their stages, as plain values."""
        layouts = [asdict(stage) for stage in self.stages]
        return {
            "local_batch": self.stages[-1].local_batch,
            "accumulation": self.stages[-1].accumulation,
            "stages": layouts,
            "until_samples": self.until_samples,
        }


def worlds_of(candidate: Candidate) -> tuple[World, ...]:
    """Return the worlds of a candidate, one where neither nodes nor processes change."""
    alone = Stage(
        from_samples=0,
        nodes=candidate.nodes,
        processes_per_node=candidate.processes_per_node,
        local_batch=candidate.local_batch,
        accumulation=candidate.accumulation,
    )
    stages = candidate.stages or (alone,)
    groups = [tuple(group) for _, group in itertools.groupby(stages, key=_shape)]
    ends = [group[0].from_samples for group in groups[1:]]
    return tuple(
        World(stages=group, until_samples=end)
        for group, end in itertools.zip_longest(groups, ends, fillvalue=None)
        if group
    )


def worlds_left(worlds: Sequence[World], from_samples: int) -> Sequence[World]:
    """Return the worlds from the one in force at ``from_samples`` on."""
    done = sum(world.until_samples is not None and world.until_samples <= from_samples for world in worlds)
    return worlds[done:]


def _shape(stage: Stage) -> Shape:
    return stage.nodes, stage.processes_per_node


@dataclass(slots=True)
class Joined:
    """What the worlds of one attempt say at their ends, put together."""

    results: list[Mapping[str, Any]] = field(default_factory=list)
    began_at_steps: list[int] = field(default_factory=list)

    def add(self, result: Mapping[str, Any], steps_before: int) -> None:
        """Take a world's result and the steps that the run had taken before it."""
        self.results.append(result)
        self.began_at_steps.append(steps_before)

    def final(self) -> dict[str, Any]:
        """Return the last result with the mean step over all worlds, and the memory of the fullest."""
        if not self.results:
            return {}
        if len(self.results) == 1:
            return dict(self.results[0])
        taken = [result["steps"] - before for result, before in zip(self.results, self.began_at_steps, strict=True)]
        timed = [
            (steps, result["step_time_s"])
            for steps, result in zip(taken, self.results, strict=True)
            if steps > 0 and result["step_time_s"] is not None
        ]
        steps = sum(count for count, _ in timed)
        mean_s = sum(count * seconds for count, seconds in timed) / steps if steps else None
        memory_bytes = max(result["memory_bytes"] for result in self.results)
        return {**self.results[-1], "step_time_s": mean_s, "memory_bytes": memory_bytes}
