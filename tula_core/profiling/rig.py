"""A worker set up for measuring: the network on its device, steps of any layout, a clock all ranks agree on."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import torch

from tula_core.engine.assemble import Trainee, assemble
from tula_core.engine.batches import BatchStream, Layout, Step, size_of
from tula_core.engine.context import WorkerContext
from tula_core.engine.evaluate import evaluate, evaluation_batch, first_input_values
from tula_core.engine.hardware import free_memory_bytes
from tula_core.engine.peak_memory import release_unused
from tula_core.engine.same_data import require_same_on_all
from tula_core.errors import StoppedError
from tula_core.job import Job
from tula_core.profiling.loading import ClockedData, LoaderClock
from tula_core.profiling.worlds import own_seconds
from tula_core.workloads import Workload
from tula_core.workloads.load import load_workload

_FREE_SHARE = 0.8  # of what is free may be planned for


class Rig:
    """One worker process, ready to take steps.

    Parameters
    ----------
    payload
        ``job`` (resolved); ``seconds`` of the probe left at ``launched_at_s`` (seconds since the epoch); ``share`` of
        what remains after all starts that is this worker's; ``later_starts`` of other workers that will follow;
        ``smallest_batch`` that the network can train on, 1 where not given.
    """

    def __init__(self, context: WorkerContext, payload: Mapping[str, Any]) -> None:
        self.context = context
        self.job = Job.from_mapping(payload["job"])
        self.workload: Workload = load_workload(self.job)
        self.smallest_batch = int(payload.get("smallest_batch", 1))
        self.samples = size_of(self.workload.train_set())
        self.eval_samples = size_of(self.workload.eval_set())
        if context.processes > 1:
            require_same_on_all(context, self.workload)
        self.input_values = first_input_values(self.workload)
        self._trainee: Trainee | None = self._assembled()
        self._most_evaluated: int | None = None  # a batch, where a larger one ran out of memory
        # Of the emptiest process: all of them decide by this figure, and have to decide alike.
        self.base_bytes = int(-context.all_reduce_max([-float(self._held_bytes())])[0])
        self.machine_limit_bytes = self._machine_limit()
        self.memory_limit_bytes = min(self.machine_limit_bytes, self.job.constraints.memory or self.machine_limit_bytes)
        start_s = max(0.0, time.time() - float(payload["launched_at_s"]))
        self._most_s = max(float(payload["seconds"]) - start_s, 0.0)
        self._last = time.monotonic() + self._most_s
        self._deadline: float = time.monotonic() + own_seconds(
            payload["seconds"], start_s, share=payload["share"], later_starts=payload["later_starts"]
        )

    def left_s(self) -> float:
        """Return the seconds left, by rank 0's clock on every rank.

        Raises
        ------
        StoppedError
            This worker was told to end.
        """
        if self.context.stop_signal is not None:
            raise StoppedError(f"measuring was stopped by signal {self.context.stop_signal}", self.context.stop_signal)
        return self.context.broadcast(self._deadline - time.monotonic())

    def most_left_s(self) -> float:
        """Return the seconds left with those that were kept for later workers."""
        return max(self._last - time.monotonic(), self.left_s())

    def claim(self, seconds: float) -> None:
        """Take of the time that was kept for later workers what is missing until ``seconds`` are left, or all there is.

        For what all that follows rests on: a forecast without any pilot knows nothing of accuracy and epochs, while a
        world that was not measured is forecast from the others. Only a worker alone does so, as all have to agree.
        """
        if self.context.processes == 1:
            self._deadline = max(self._deadline, min(self._last, time.monotonic() + seconds))

    def probe_for(self, factor: float) -> float:
        """Return ``probe.seconds`` with which this worker could take ``factor`` times the seconds it can have now."""
        return self.job.probe.seconds + max(factor - 1.0, 0.0) * self._most_s

    @property
    def trainee(self) -> Trainee:
        """The network that is measured; made anew where it was released."""
        if self._trainee is None:
            self._trainee = self._assembled()
        return self._trainee

    def _assembled(self) -> Trainee:
        return assemble(self.workload, self.job.recipe, self.context, seed=self.job.seed)

    def release(self) -> None:
        """Free the network, its gradients and its optimizer's state, so that another has the memory that a run has."""
        self._trainee = None
        gc.collect()  # a data-parallel wrapper is part of a cycle
        release_unused(self.context.device)

    def layout(self, local_batch: int, accumulation: int = 1) -> Layout:
        """Return the layout of a local batch over all processes of this world."""
        return Layout(processes=self.context.processes, local_batch=local_batch, accumulation=accumulation)

    def stream(self, layout: Layout, *, whole_steps: bool = False, clock: LoaderClock | None = None) -> BatchStream:
        """Return the training set's steps in ``layout``, without its tails where ``whole_steps``.

        ``clock`` hears what loader workers take for a batch.
        """
        data, collate = self.workload.train_set(), self.workload.collate
        return BatchStream(
            data if clock is None else ClockedData(data, collate, clock),
            samples=self.samples,
            layout=layout,
            rank=self.context.rank,
            seed=self.job.seed,
            workers=self.job.recipe.loader_workers,
            collate=collate if clock is None else None,
            pin_memory=self.context.device.type == "cuda",
            whole_steps=whole_steps,
        )

    def evaluate_part(self, trainee: Trainee, local_batch: int, limit: int) -> tuple[float, int, float]:
        """Return metric, samples and seconds of an evaluation over a fixed random part of ``limit`` samples."""
        batch = self._evaluation_batch(local_batch)
        result = evaluate(trainee, batch, limit=limit, seed=self.job.seed)
        if result.batch < batch:
            self._most_evaluated = result.batch
        return result.metric, result.samples, result.seconds

    def one_evaluation_batch(self, local_batch: int) -> int:
        """Return the samples of one evaluation batch on each process."""
        return min(self._evaluation_batch(local_batch) * self.context.processes, self.eval_samples)

    def _evaluation_batch(self, local_batch: int) -> int:
        batch = evaluation_batch(local_batch, self.input_values)
        return min(batch, self._most_evaluated or batch)

    def _held_bytes(self) -> int:
        if self.context.device.type == "cuda":
            return int(torch.cuda.memory_reserved(self.context.device))
        return int(psutil.Process().memory_info().rss)

    def _machine_limit(self) -> int:
        """Return what this process may grow to: 80 % of what is free, in equal shares."""
        if self.context.device.type == "cuda":
            free = float(torch.cuda.mem_get_info(self.context.device)[0])
        else:
            free = free_memory_bytes() / self.context.processes
        limit = self.base_bytes + int(_FREE_SHARE * free)
        return int(-self.context.all_reduce_max([-float(limit)])[0])


class StepFeed:
    """Full steps of one layout for ever; the short ones at the end of an epoch are left out without loading them.

    As in a run, loader workers go on from one epoch to the next.
    """

    def __init__(self, rig: Rig, layout: Layout, *, epoch: int = 0) -> None:
        self.layout = layout
        self.full_steps = rig.samples // layout.global_batch
        self.workers = rig.job.recipe.loader_workers
        self._clock = LoaderClock(self.workers) if self.workers else None
        self._stream = rig.stream(layout, whole_steps=True, clock=self._clock)
        self._taken = epoch * self.full_steps
        self._steps: Iterator[Step] | None = None

    @property
    def making_s(self) -> float:
        """Seconds of one loader worker for a batch as far as known, 0 without workers."""
        return 0.0 if self._clock is None else self._clock.making_s

    def next(self) -> Step:
        """Return the next full step, its data loaded."""
        if self._steps is None:
            self._steps = self._stream.from_samples(self._taken * self.layout.global_batch)
        self._taken += 1
        return next(self._steps)

    def pause(self) -> None:
        """End the loader processes until the next step is asked for."""
        if self.workers:
            self._steps = None
