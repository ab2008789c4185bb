"""A job's step-time and memory models seen in another precision, behind the same interfaces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.memory import MemoryModel, StateBytes
from tula_core.models.precision import PrecisionModel
from tula_core.models.step.fit import StepTimeModel
from tula_core.models.step.time import Shapes
from tula_core.records.profile import CommunicationTiming, StepTiming

Array = NDArray[np.float64]

_HIDDEN_SD = 0.1  # of the gain of several processes: how much of what was hidden comes to light


@dataclass(frozen=True, kw_only=True, slots=True)
class _World:
    """What one measured number of processes says of a step's parts, by local batch."""

    nodes: float
    processes_per_node: float
    log_batch: Array  # ascending
    share: Array  # of the step that is computation
    hidden_s: float  # of an all-reduce, behind the backward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionStep:
    """The step time of `StepTimeModel` with its computation in another precision."""

    base: StepTimeModel
    model: PrecisionModel
    worlds: tuple[_World, ...]

    def predict(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return mean seconds of a steady step and their log standard deviation, each of shape (n,).

        T' = T - C + r C + what the shorter backward pass no longer hides, with C the computation in the recipe's
        precision and r the ratio of the precisions.
        """
        time_s, log_sd = self.base.predict(shapes)
        compute_s, hidden_s = self._parts(shapes, time_s)
        ratio, ratio_sd = self.model.ratio(shapes.local_batch)
        changed_s = ratio * compute_s
        value = self._changed(time_s, compute_s, hidden_s, ratio)
        gain = np.maximum(compute_s - changed_s, 0.0) / value * (shapes.processes > 1)
        log_sd = np.sqrt(log_sd**2 + (changed_s / value * ratio_sd) ** 2 + (_HIDDEN_SD * gain) ** 2)
        return value, log_sd

    def seconds(self, shapes: Shapes) -> Array:
        """Return the seconds of `predict` alone, shape (n,)."""
        time_s = self.base.seconds(shapes)
        return self._changed(time_s, *self._parts(shapes, time_s), self.model.ratio(shapes.local_batch)[0])

    def _changed(self, time_s: Array, compute_s: Array, hidden_s: Array, ratio: Array) -> Array:
        """Return the seconds of a step whose computation takes ``ratio`` times as long."""
        exposed_s = hidden_s * np.maximum(1.0 - ratio, 0.0)
        changed_s = time_s - compute_s + ratio * compute_s + exposed_s + self.model.optimizer_extra_s
        return np.maximum(changed_s, 1e-2 * time_s)

    def first_step_extra_s(self, shapes: Shapes) -> Array:
        """Return seconds that the first step takes beyond a steady one, as in the recipe's precision."""
        return self.base.first_step_extra_s(shapes)

    def is_measured(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Return where the configuration was timed, and its local batch in this precision too, shape (n,)."""
        timed = np.isin(shapes.local_batch, np.array(sorted(self.model.timed), dtype=float))
        return np.asarray(self.base.is_measured(shapes) & timed)

    def _parts(self, shapes: Shapes, time_s: Array) -> tuple[Array, Array]:
        """Return seconds of computation, and of communication behind it, from the nearest measured processes.

        What a step takes on more processes than were measured beyond what it takes there is not computation.
        """
        distance = [
            np.abs(np.log2(shapes.processes_per_node / world.processes_per_node))
            + 2 * np.abs(np.log2(shapes.nodes / world.nodes))
            for world in self.worlds
        ]
        nearest = np.argmin(np.stack(distance), axis=0)
        compute_s, hidden_s = np.empty_like(time_s), np.empty_like(time_s)
        for index, world in enumerate(self.worlds):
            here = nearest == index
            if not here.any():
                continue
            batch, ones = shapes.local_batch[here], np.ones(int(here.sum()))
            there = Shapes(
                nodes=world.nodes * ones,
                processes_per_node=world.processes_per_node * ones,
                local_batch=batch,
                accumulation=shapes.accumulation[here],
            )
            share = np.interp(np.log(batch), world.log_batch, world.share)
            compute_s[here] = np.minimum(share * self.base.seconds(there), time_s[here])
            hidden_s[here] = world.hidden_s
        return compute_s, hidden_s


def precision_step(
    base: StepTimeModel,
    model: PrecisionModel,
    steps: Sequence[StepTiming],
    communication: Sequence[CommunicationTiming],
    gradient_bytes: float,
) -> PrecisionStep:
    """Return the step time in another precision from the parts of the timed steps; at least one is needed."""
    worlds = tuple(_worlds(steps, communication, gradient_bytes))
    return PrecisionStep(base=base, model=model, worlds=worlds)


def precision_memory(memory: MemoryModel, model: PrecisionModel, state: StateBytes, reference: str) -> MemoryModel:
    """Return the memory model in another precision."""
    casts = {"fp32": 0.0}
    extra = casts.get(model.precision, state.casts) - casts.get(reference, state.casts)
    batches = np.array([row.local_batch for row in model.rows], dtype=float)
    grown = np.zeros_like(batches) if memory.training is None else memory.training.growth_bytes(batches)
    factor, sd = model.activations(grown, extra, reference)
    return memory.in_precision(factor, sd, extra)


def _worlds(
    steps: Sequence[StepTiming], communication: Sequence[CommunicationTiming], gradient_bytes: float
) -> Iterator[_World]:
    for nodes, processes in sorted({(row.nodes, row.processes_per_node) for row in steps}):
        rows = [row for row in steps if (row.nodes, row.processes_per_node) == (nodes, processes)]
        by_batch: dict[int, list[StepTiming]] = {}
        for row in rows:
            by_batch.setdefault(row.local_batch, []).append(row)
        batches = sorted(by_batch)
        shares = [
            math.fsum(row.compute_s for row in by_batch[b]) / math.fsum(row.step_time_s for row in by_batch[b])
            for b in batches
        ]
        sent = {
            row.message_bytes: row.time_s
            for row in communication
            if (row.nodes, row.processes_per_node) == (nodes, processes)
        }
        shown = float(np.median([row.communication_s for row in rows]))
        yield _World(
            nodes=float(nodes),
            processes_per_node=float(processes),
            log_batch=np.log(np.array(batches, dtype=float)),
            share=np.clip(np.array(shares), 0.0, 1.0),
            hidden_s=max(_time_of(sent, gradient_bytes) - shown, 0.0),
        )


def _time_of(sent: dict[int, float], message_bytes: float) -> float:
    """Return seconds of a message, in proportion beyond the largest that was timed; 0 where none was."""
    if not sent:
        return 0.0
    sizes = sorted(sent)
    beyond = max(message_bytes / sizes[-1], 1.0)
    return beyond * float(np.interp(message_bytes, sizes, [sent[size] for size in sizes]))
