"""The measuring worker of one world: memory first, from small to large, then shuffled timing, then pilots.

Everything is emitted the moment it is known, so that a worker that dies has lost nothing but the size it tried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tula_core.engine.checkpoint import save_checkpoint
from tula_core.engine.peak_memory import peak_bytes, reset_peak
from tula_core.profiling.communication import message_sizes, time_all_reduce
from tula_core.profiling.pilot import Pilots
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.statistics import drift, forecast_peak
from tula_core.profiling.timing import CLOCKED_STEPS, SizeRun, first_look, timed_block
from tula_core.seeding import derive_seed

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext

FIRST_LOOK_SHARE = 0.4  # of the time may go into the ascending pass
PILOT_SHARE = 0.47  # of the time is kept for pilots, where the world has any
_SIDE_SHARE = 0.06  # for the evaluation, and for the all-reduces
EVALUATION_SAMPLES = 2000
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 5
_MOST_STEPS, _FEWEST_STEPS = 30, 3
_BLOCK_EXTRA = 1 + 2 * CLOCKED_STEPS  # warm-up and clocked steps around a block
_TEARDOWN_S = 0.3


class Sweep:
    """One world's measurements on one process."""

    def __init__(self, rig: Rig, payload: Mapping[str, Any]) -> None:
        self.rig = rig
        self.payload = payload
        self.runs: list[SizeRun] = []
        self.peaks: list[tuple[int, int]] = []
        self.begun_s = rig.left_s()
        self.limited_by = ""
        self.eval_limit = EVALUATION_SAMPLES
        self.eval_sample_s = 0.0

    def first_looks(self) -> None:
        """Try each size from the smallest up: memory, first step, two more; stop where the next may not fit."""
        rig = self.rig
        for size in self.payload["sizes"]:
            feed = StepFeed(rig, rig.layout(size))
            if feed.full_steps == 0:
                continue
            self.limited_by = self._limit(size)
            if self.limited_by:
                break
            rig.context.emit("trying", local_batch=size)
            run = SizeRun(local_batch=size, feed=feed, order=len(self.runs))
            reset_peak(rig.context.device)
            first_look(rig, run)
            batch = rig.one_evaluation_batch(size)
            _, samples, seconds = rig.evaluate_part(rig.trainee, size, batch)
            self.eval_sample_s = seconds / max(samples, 1)
            peak = int(rig.context.all_reduce_max([float(peak_bytes(rig.context.device))])[0])
            self.peaks.append((size, peak))
            self.runs.append(run)
            rig.context.emit("memory", local_batch=size, peak_bytes=peak)
            self._report(run)
        rig.context.emit("trying", local_batch=None)

    def _limit(self, size: int) -> str:
        """Return why ``size`` is not to be tried, empty where it is."""
        if not self.runs:
            return ""
        peak = forecast_peak(self.peaks, self.rig.base_bytes, size)
        if peak > self.rig.memory_limit_bytes:
            return "memory"
        last = self.runs[-1]
        needed = last.start_extra_s + 8 * last.estimate_s * size / last.local_batch
        spent = self.begun_s - self.rig.left_s()
        return "time" if spent + needed > FIRST_LOOK_SHARE * self.begun_s else ""

    def side_measurements(self) -> None:
        """Time an evaluation, a checkpoint and all-reduces."""
        rig, share = self.rig, _SIDE_SHARE * self.begun_s
        local = self.runs[-1].local_batch
        middle = next((run.local_batch for run in self.runs if run.local_batch >= self.payload["middle"]), local)
        affordable = int(share / max(self.eval_sample_s, 1e-9))
        self.eval_limit = min(EVALUATION_SAMPLES, rig.eval_samples, max(affordable, rig.context.processes))
        if rig.left_s() > share:
            _, samples, seconds = rig.evaluate_part(rig.trainee, middle, self.eval_limit)
            self.eval_sample_s = seconds / max(samples, 1)
            rig.context.emit("evaluation", samples=samples, seconds=seconds)
        path = rig.context.folder / "checkpoint.pt"
        began = time.perf_counter()
        save_checkpoint(rig.trainee, path, {})
        rig.context.emit("checkpoint", seconds=time.perf_counter() - began)
        if rig.context.rank == 0:
            path.unlink(missing_ok=True)
        if rig.context.processes > 1:
            for size in message_sizes(self.payload["gradient_bytes"]):
                if rig.left_s() > share:
                    seconds = time_all_reduce(rig, size, share / 5)
                    rig.context.emit("communication", message_bytes=size, time_s=seconds)

    def rounds(self, seconds: float) -> bool:
        """Time all sizes in shuffled order, several times over; return whether every size was timed twice or more."""
        rig = self.rig
        until = rig.left_s() - seconds
        whole = sum((_MOST_STEPS + _BLOCK_EXTRA) * run.estimate_s for run in self.runs)
        count = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, int(seconds / max(whole, 1e-9))))
        shuffler = random.Random(derive_seed(rig.job.seed, "sweep order", rig.context.processes))
        order = 0
        for number in range(count):
            for position, run in enumerate(shuffler.sample(self.runs, len(self.runs))):
                blocks_left = (count - number) * len(self.runs) - position
                steps = self._steps_of_block(run, (rig.left_s() - until) / blocks_left)
                if steps == 0:
                    continue
                if not run.blocks:
                    run.order = order
                timed_block(rig, run, steps, with_parts=steps >= _FEWEST_STEPS)
                order += 1
                self._report(run)
            rig.context.emit("round", done=number + 1, of=count)
        self._report_drift()
        return all(len(run.blocks) >= _FEWEST_ROUNDS for run in self.runs)

    def _steps_of_block(self, run: SizeRun, slice_s: float) -> int:
        fitting = int(self.rig.context.broadcast(slice_s / max(run.estimate_s, 1e-9)))
        if fitting >= _FEWEST_STEPS + _BLOCK_EXTRA:
            return min(_MOST_STEPS, fitting - _BLOCK_EXTRA)
        return min(_FEWEST_STEPS - 1, max(0, fitting - 1))

    def _report(self, run: SizeRun) -> None:
        first = self.runs[0] if self.runs else run
        timing = run.timing(self.rig, 0.0 if run is first else first.start_extra_s)
        self.rig.context.emit("step", **asdict(timing))

    def _report_drift(self) -> None:
        twice = [run for run in self.runs if len(run.blocks) > 1]
        first = {run.local_batch: sum(run.blocks[0]) / len(run.blocks[0]) for run in twice}
        last = {run.local_batch: sum(run.blocks[-1]) / len(run.blocks[-1]) for run in twice}
        self.rig.context.emit("drift", share=drift(first, last))


def run_in_worker(context: WorkerContext, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Entry of the measuring worker.

    ``payload``: ``job`` (resolved), ``sizes`` (local batches, ascending), ``middle`` (the reference's local batch),
    ``gradient_bytes``, ``pilots`` (global batches), ``noise`` (whether the last pilot measures it), and those of `Rig`.
    """
    rig = Rig(context, payload)
    context.emit("ready", seconds=rig.left_s())
    sweep = Sweep(rig, payload)
    sweep.first_looks()
    if not sweep.runs:
        return {"settled": True, "limited_by": "data"}
    sweep.side_measurements()
    left = rig.left_s() - _TEARDOWN_S
    pilots = Pilots(
        rig,
        sweep.runs,
        payload["pilots"],
        limit=sweep.eval_limit,
        eval_sample_s=sweep.eval_sample_s,
        noise=payload["noise"],
    )
    pilot_s = min(PILOT_SHARE * left, pilots.wanted_s()) if payload["pilots"] else 0.0
    settled = sweep.rounds(max(0.0, left - pilot_s))
    pilots.run(max(pilot_s, rig.left_s() - _TEARDOWN_S))
    return {"settled": settled, "limited_by": sweep.limited_by}
