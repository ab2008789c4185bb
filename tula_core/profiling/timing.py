"""Timing the steps of one local batch: contiguous steps as a run takes them, and parts of a step apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tula_core.engine.cold_start import cold_excess_s, cold_steps
from tula_core.engine.loop import PartClock, run_step
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.statistics import block_scatter, parts_of_step, robust_mean, standard_error
from tula_core.records import StepTiming

# The arithmetic of a step does not depend on the rate, and with none the weights stay as they began: no overflow,
# no denormal numbers, and equal weights on all ranks also after steps without communication.
_RATE = 0.0
CLOCKED_STEPS = 2
_LOOK_STEPS = 2 + 2 * CLOCKED_STEPS  # of a first look, after the first


@dataclass(slots=True)
class SizeRun:
    """What is known of one local batch so far."""

    local_batch: int
    feed: StepFeed
    order: int = 0
    first_step_s: float = 0.0
    blocks: list[list[float]] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    preliminary: list[float] = field(default_factory=list)

    @property
    def estimate_s(self) -> float:
        """Seconds of a steady step as far as known."""
        return statistics.median(self.blocks[-1] if self.blocks else self._warm)

    @property
    def start_extra_s(self) -> float:
        """Seconds that the first steps took beyond steady ones: often more than one of them is cold."""
        first = max(0.0, self.first_step_s - self.estimate_s)
        return first + cold_excess_s(self.preliminary, self.estimate_s)

    @property
    def _warm(self) -> list[float]:
        return self.preliminary[cold_steps(self.preliminary) :]

    def timing(self, rig: Rig, start_extra_s: float) -> StepTiming:
        """Return the record of all blocks, or of the first short look where there is no block yet.

        ``start_extra_s`` is what the process's very first step cost on top, whatever its size: a run pays for it too.
        All that the first steps took beyond steady ones is in ``first_step_s``.
        """
        blocks = self.blocks or [self._warm]
        values = [value for block in blocks for value in block]
        mean = robust_mean(values)
        names = {name for parts in self.parts for name in parts}
        middle = {name: statistics.median(parts[name] for parts in self.parts) for name in names}
        return StepTiming(
            nodes=rig.context.nodes,
            processes_per_node=rig.context.processes_per_node,
            local_batch=self.local_batch,
            accumulation=1,
            steps=len(values),
            step_time_s=mean,
            step_time_median_s=statistics.median(values),
            step_time_error_s=standard_error(blocks),
            block_scatter=block_scatter(blocks),
            first_step_s=self.first_step_s + cold_excess_s(self.preliminary, mean) + start_extra_s,
            order=self.order,
            **parts_of_step(middle, mean),
        )


class Stamps:
    """Marks the ends of steps without making the host wait for the device."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._cuda = rig.context.device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark this point in the device's work."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def durations_s(self) -> list[float]:
        """Return the times between marks on the slowest rank."""
        self._rig.context.synchronise()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        own = [a.elapsed_time(b) / 1e3 if self._cuda else b - a for a, b in pairs]
        return self._rig.context.all_reduce_max(own)


def plain_steps(rig: Rig, feed: StepFeed, count: int) -> list[float]:
    """Take contiguous steps as a run does and return the seconds of each, loading included."""
    rig.context.synchronise()
    rig.context.barrier()
    stamps = Stamps(rig)
    stamps.mark()
    for _ in range(count):
        run_step(rig.trainee, feed.next(), _RATE)
        stamps.mark()
    return stamps.durations_s()


def clocked_parts(rig: Rig, feed: StepFeed) -> dict[str, float]:
    """Return the parts of a step on the busiest rank; communication is what synchronising adds to the computation."""
    full = _clocked(rig, feed, communicate=True)
    alone = _clocked(rig, feed, communicate=False) if rig.context.processes > 1 else full
    own = {
        "loader_s": full["loader"],
        "compute_s": alone["compute"],
        "communication_s": max(0.0, full["compute"] - alone["compute"]),
        "optimizer_s": full["optimizer"],
    }
    busy = own["loader_s"] + own["compute_s"] + own["optimizer_s"]
    busiest = rig.context.all_reduce_max([busy])[0]
    shown = rig.context.all_reduce_max([value if busy >= busiest else 0.0 for value in own.values()])
    return dict(zip(own, shown, strict=True))


def _clocked(rig: Rig, feed: StepFeed, *, communicate: bool) -> dict[str, float]:
    seen: list[dict[str, float]] = []
    for _ in range(CLOCKED_STEPS):
        rig.context.barrier()
        clock = PartClock(rig.trainee)
        step = feed.next()
        clock.mark("loader")
        run_step(rig.trainee, step, _RATE, clock=clock, communicate=communicate)
        seen.append(clock.seconds)
    return {part: statistics.median(seconds[part] for seconds in seen) for part in ("loader", "compute", "optimizer")}


def first_look(rig: Rig, run: SizeRun, after_first: Callable[[], None] = lambda: None) -> None:
    """Take three optimizer steps: the first apart, two more, and the parts of a step.

    Where the time left is short it is two steps alone: memory is whole only after the second. ``after_first`` is called
    when the first step is done and the loader's workers are still there.
    """
    run.first_step_s = plain_steps(rig, run.feed, 1)[0]
    after_first()
    ample = rig.left_s() > _LOOK_STEPS * run.first_step_s
    run.preliminary = plain_steps(rig, run.feed, 2 if ample else 1)
    if ample:
        run.parts = [clocked_parts(rig, run.feed)]
    run.feed.pause()


def timed_block(rig: Rig, run: SizeRun, steps: int, *, with_parts: bool) -> None:
    """Add one block of ``steps`` contiguous steps, after a warm-up."""
    plain_steps(rig, run.feed, max(1, rig.job.recipe.loader_workers))
    run.blocks.append(plain_steps(rig, run.feed, steps))
    if with_parts:
        run.parts.append(clocked_parts(rig, run.feed))
    run.feed.pause()
