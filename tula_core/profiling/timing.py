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
from tula_core.profiling.loading import PREFETCHED
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.statistics import NOISE, block_scatter, parts_of_step, robust_mean, rounds_of, standard_error
from tula_core.records import StepTiming

# The arithmetic of a step does not depend on the rate, and with none the weights stay as they began: no overflow,
# no denormal numbers, and equal weights on all ranks also after steps without communication.
_RATE = 0.0
CLOCKED_STEPS = 2
_LOOK_STEPS = 2 + 2 * CLOCKED_STEPS  # of a first look, after the first
_HIDDEN = 0.5  # of the computation: loading that takes no longer never holds a step up


@dataclass(slots=True)
class SizeRun:
    """What is known of one local batch so far.

    ``loading_s`` are the seconds in which all loader ``workers`` together make one batch, and ``held_up`` says whether
    that may make the steps longer.
    """

    local_batch: int
    feed: StepFeed
    order: int = 0
    first_step_s: float = 0.0
    blocks: list[list[float]] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    preliminary: list[float] = field(default_factory=list)
    workers: int = 0
    loading_s: float = 0.0
    held_up: bool = False

    @property
    def estimate_s(self) -> float:
        """Seconds of a steady step as far as known."""
        if self.blocks:
            return robust_mean(rounds_of(self.blocks[-1], self.round_steps))
        return max(statistics.median(self._warm), self.loading_s)

    @property
    def round_steps(self) -> int:
        """Steps of a round of the loader workers, where only whole rounds have a mean, 1 elsewhere."""
        return self.workers if self.held_up else 1

    @property
    def warm_up_steps(self) -> int:
        """Steps before a block: where loading may hold them up, until what was made ahead is used up."""
        return max(1, self.workers * PREFETCHED if self.held_up else self.workers)

    @property
    def untimed(self) -> bool:
        """Whether the step time is reckoned from the loading alone, for want of whole rounds."""
        return self.held_up and not self.blocks

    @property
    def _busy_s(self) -> float:
        """Seconds of a step beside its loading; 0 while nothing was clocked."""
        return sum(self._middle.get(name, 0.0) for name in ("compute_s", "communication_s", "optimizer_s"))

    @property
    def _middle(self) -> dict[str, float]:
        names = {name for parts in self.parts for name in parts}
        return {name: statistics.median(parts[name] for parts in self.parts) for name in names}

    def settle_rounds(self, rig: Rig) -> None:
        """Take what the loader workers took for a batch on the slowest rank."""
        self.workers = self.feed.workers
        if self.workers:
            self.loading_s = rig.context.all_reduce_max([self.feed.making_s])[0] / self.workers
            # A machine that is busy with other work can make the clocked steps long, and the shorter are right.
            self.held_up = self.loading_s > _HIDDEN * min([self._busy_s, *self.preliminary])

    def keep_block(self, durations_s: list[float]) -> None:
        """Take a block, unless it shows that the steps wait for a loader whose rounds it did not follow."""
        if not self.held_up and self.loading_s > _HIDDEN * robust_mean(durations_s):
            self.held_up = True
            self.blocks.clear()
        else:
            self.blocks.append(durations_s)

    def step_time_s(self) -> tuple[float, float, list[list[float]]]:
        """Return the mean step, its standard error, and the rounds of steps they rest on in their blocks."""
        blocks = [rounds_of(block, self.round_steps) for block in self.blocks] or [self._warm]
        mean, error = robust_mean([value for block in blocks for value in block]), standard_error(blocks)
        if self.untimed:
            mean = max(mean, self.loading_s)
            error = max(error, NOISE * mean)
        return mean, error, blocks

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
        mean, error, blocks = self.step_time_s()
        values = [value for block in self.blocks or [self._warm] for value in block]
        parts = self._middle
        if self.held_up:
            # The clocked steps used up what lay ready; what the others waited for is what their mean has more.
            parts["loader_s"] = max(0.0, mean - self._busy_s)
        return StepTiming(
            nodes=rig.context.nodes,
            processes_per_node=rig.context.processes_per_node,
            local_batch=self.local_batch,
            accumulation=1,
            steps=len(values),
            step_time_s=mean,
            step_time_median_s=statistics.median(values),
            step_time_error_s=error,
            block_scatter=block_scatter(blocks),
            first_step_s=self.first_step_s + cold_excess_s(self.preliminary, mean) + start_extra_s,
            order=self.order,
            **parts_of_step(parts, mean),
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
    run.settle_rounds(rig)
    run.feed.pause()


def timed_block(rig: Rig, run: SizeRun, steps: int, *, with_parts: bool) -> None:
    """Add one block of ``steps`` contiguous steps, whole rounds of them, after a warm-up."""
    plain_steps(rig, run.feed, run.warm_up_steps)
    run.keep_block(plain_steps(rig, run.feed, steps))
    if with_parts:
        run.parts.append(clocked_parts(rig, run.feed))
    run.feed.pause()
