"""The measuring worker of one world: memory first, from small to large, then timing, then pilots.

Everything is emitted the moment it is known, so that a worker that dies has lost nothing but the size it tried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tula_core.engine.checkpoint import save_checkpoint
from tula_core.profiling.active import Standing, next_size
from tula_core.profiling.communication import message_sizes, time_all_reduce
from tula_core.profiling.learning_rate import settle_rate
from tula_core.profiling.memory import MemoryPhases, sample_content
from tula_core.profiling.pilot import Pilots
from tula_core.profiling.power import PowerLog
from tula_core.profiling.precision import measure_precisions
from tula_core.profiling.rate_rules import RATE_SHARE
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.scouts import (
    FIRST_LOOK_SHARE,
    LOOK_STEPS,
    Scouts,
    fits,
    send_scouts,
    sizes_after,
    with_quarter,
)
from tula_core.profiling.statistics import drift
from tula_core.profiling.timing import CLOCKED_STEPS, SizeRun, first_look, timed_block
from tula_core.seeding import derive_seed

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext

PILOT_SHARE = 0.47  # of the time is kept for pilots, where the world has any
_SIDE_SHARE = 0.06  # for the evaluation, and for the all-reduces
_PRECISION_SHARE = 0.12  # of what then remains, for each of up to two other precisions
_CONTENT_SHARE = 0.02  # for what single samples need
EVALUATION_SAMPLES = 2000
_SCREEN_SHARE = 0.5  # of the time for timing may go into the first block of every size
_MOST_ROUNDS = 5
_MOST_STEPS, _FEWEST_STEPS = 30, 3
_CLOCKED = 2 * CLOCKED_STEPS  # after a block
_TEARDOWN_S = 0.3


class Sweep:
    """One world's measurements on one process."""

    def __init__(self, rig: Rig, payload: Mapping[str, Any]) -> None:
        self.rig = rig
        self.payload = payload
        self.runs: list[SizeRun] = []
        self.power = PowerLog(rig.context)
        self.peaks: list[tuple[int, int]] = []
        self.scouts = Scouts()
        self.begun_s = rig.left_s()
        self.limited_by = ""
        self.eval_limit = EVALUATION_SAMPLES
        self.eval_sample_s = 0.0
        self.timed = 0

    def first_looks(self) -> None:
        """Try each size from the smallest up: memory, first step, two more; stop where the next may not fit."""
        rig = self.rig
        sizes, smaller = self.payload["sizes"], self.payload["smaller"]
        self.scouts = send_scouts(rig, smaller, sizes[0])
        asked = sizes_after(rig, self.scouts, smaller, sizes)
        if rig.context.processes == 1 and asked == sizes:
            asked = with_quarter(sizes, smaller, self.scouts, self.begun_s)
        for size in asked:
            feed = StepFeed(rig, rig.layout(size))
            if feed.full_steps == 0:
                continue
            self.limited_by = self._limit(size, due=size == sizes[0] and asked[1:] == sizes)
            if self.limited_by:
                break
            rig.context.emit("trying", local_batch=size)
            run = SizeRun(local_batch=size, feed=feed, order=len(self.runs))
            phases = MemoryPhases(rig)
            first_look(rig, run, phases.end_first_step)
            phases.end_training()
            self._evaluate_batch(run, phases)
            peaks = phases.peaks(size)
            peak = max(peaks["peak_bytes"], peaks["first_peak_bytes"])
            self.peaks.append((size, peak))
            over = peak > rig.machine_limit_bytes
            rig.context.emit("memory", local_batch=size, outcome="over_limit" if over else "ok", **peaks)
            if over and self.runs:
                self.limited_by = "memory"
                break
            self.runs.append(run)
            self._report(run)
        rig.context.emit("trying", local_batch=None)

    def _evaluate_batch(self, run: SizeRun, phases: MemoryPhases) -> None:
        """Evaluate one batch as a run does, or as much of it as there is time for."""
        rig, size = self.rig, run.local_batch
        whole = rig.one_evaluation_batch(size)
        # A forward pass takes no longer than a step.
        affordable = int(rig.left_s() / max(run.estimate_s, 1e-9) * size * rig.context.processes)
        _, samples, seconds = rig.evaluate_part(rig.trainee, size, min(whole, max(affordable, rig.context.processes)))
        self.eval_sample_s = seconds / max(samples, 1)
        if rig.one_evaluation_batch(size) < whole:
            # It did not fit and was halved, as it will be in a run: only what then fits counts for the memory.
            phases.restart_evaluation()
            rig.evaluate_part(rig.trainee, size, rig.one_evaluation_batch(size))

    def _limit(self, size: int, *, due: bool) -> str:
        """Return why ``size`` is not to be tried, empty where it is; time was found already for one that is ``due``."""
        known = self.peaks or self.scouts.peaks
        if known and not fits(self.rig, known, size):
            return "memory"
        if due or not self.runs:
            return ""
        last = self.runs[-1]
        needed = last.start_extra_s + LOOK_STEPS * last.estimate_s * size / last.local_batch
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
        content = sample_content(rig, _CONTENT_SHARE * self.begun_s) if rig.context.processes == 1 else None
        if content is not None:
            rig.context.emit("content", **asdict(content))
        if rig.context.processes > 1:
            for size in message_sizes(self.payload["gradient_bytes"]):
                if rig.left_s() > share:
                    seconds = time_all_reduce(rig, size, share / 5)
                    rig.context.emit("communication", message_bytes=size, time_s=seconds)

    def rounds(self, seconds: float) -> bool:
        """Time every size once in shuffled order, then those the choice hangs on; return whether enough was timed."""
        until = self.rig.left_s() - seconds
        self._screen(until + (1 - _SCREEN_SHARE) * seconds)
        settled = self._contest(until)
        self.power.report()
        self._report_drift()
        if untimed := [run.local_batch for run in self.runs if run.untimed]:
            self.rig.context.emit("loading_untimed", local_batches=untimed)
        return settled and all(run.blocks for run in self.runs)

    def _screen(self, until: float) -> None:
        rig = self.rig
        shuffler = random.Random(derive_seed(rig.job.seed, "sweep order", rig.context.processes))
        waiting = shuffler.sample(self.runs, len(self.runs))
        while waiting:
            # As many steps of each size as fit: equally sure means, where equal seconds would favour small batches.
            share = waiting[0].estimate_s / max(sum(run.estimate_s for run in waiting), 1e-9)
            self._block(waiting.pop(0), share * (rig.left_s() - until))
        rig.context.emit("round", done=1, of=_MOST_ROUNDS)

    def _contest(self, until: float) -> bool:
        """Time what is worth most until that is nothing; return False where the time ends while the choice is open."""
        while True:
            standings = [self._standing(run) for run in self.runs]
            number, settled = next_size(standings, self.payload["rival"], _MOST_ROUNDS)
            # All processes have the same figures; one of them decides, so that rounding never parts them.
            agreed = int(self.rig.context.broadcast(-1.0 if number is None else float(number)))
            if agreed < 0:
                return True
            if not self._block(self.runs[agreed], self.rig.left_s() - until):
                return settled

    def _standing(self, run: SizeRun) -> Standing:
        mean, error, _ = run.step_time_s()
        return Standing(
            step_time_s=mean,
            relative_error=error / mean,
            log_weight=self.payload["log_weights"][str(run.local_batch)],
            blocks=len(run.blocks),
            block_s=(_MOST_STEPS + run.warm_up_steps + _CLOCKED) * run.estimate_s,
        )

    def _block(self, run: SizeRun, slice_s: float) -> bool:
        """Time one block of a size in about ``slice_s`` seconds; return whether there was time for any step."""
        steps = self._steps_of_block(run, slice_s)
        if steps == 0:
            return False
        if not run.blocks:
            run.order = self.timed
        self.rig.context.emit("trying", local_batch=run.local_batch)
        with self.power.window(run.local_batch):
            timed_block(self.rig, run, steps, with_parts=steps >= _FEWEST_STEPS)
        self.rig.context.emit("trying", local_batch=None)
        self.timed += 1
        self._report(run)
        return True

    def _steps_of_block(self, run: SizeRun, slice_s: float) -> int:
        fitting = int(self.rig.context.broadcast(slice_s / max(run.estimate_s, 1e-9)))
        longest = min(max(_MOST_STEPS, run.round_steps), fitting - run.warm_up_steps - _CLOCKED)
        if longest >= max(_FEWEST_STEPS, run.round_steps):
            return longest - longest % run.round_steps
        if run.untimed:
            return 0  # a part of a round only uses up what lies ready
        return min(_FEWEST_STEPS - 1, max(0, fitting - 1))

    def _report(self, run: SizeRun) -> None:
        first = self.runs[0] if self.runs else run
        extra_s = self.scouts.excess_s(first.estimate_s) + (0.0 if run is first else first.start_extra_s)
        timing = run.timing(self.rig, extra_s)
        self.rig.context.emit("step", **asdict(timing))

    def _report_drift(self) -> None:
        twice = [run for run in self.runs if len(run.blocks) > 1]
        first = {run.local_batch: sum(run.blocks[0]) / len(run.blocks[0]) for run in twice}
        last = {run.local_batch: sum(run.blocks[-1]) / len(run.blocks[-1]) for run in twice}
        self.rig.context.emit("drift", share=drift(first, last))


def claim_pilot(rig: Rig, least_s: float) -> None:
    """Claim what a pilot of at least ``least_s`` lacks, where that would be enough; else later workers need it more."""
    # One more percent: what is claimed has to be enough once it is shared.
    needed_s = 1.01 * least_s / PILOT_SHARE + _TEARDOWN_S
    if needed_s <= rig.most_left_s():
        rig.claim(needed_s)


def run_in_worker(context: WorkerContext, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Entry of the measuring worker.

    ``payload``: ``sizes`` (local batches, ascending), ``smaller`` (halvings of the first, ascending),
    ``middle`` (the reference's local batch), ``gradient_bytes``,
    ``pilots`` (global batches), ``noise`` (whether the last pilot measures it), ``precisions`` (others than the
    recipe's, for one process), ``find_rate`` (whether to measure the learning rate, for one process), ``log_weights``
    (of each local batch, by its digits) and ``rival`` as `next_size` takes them, and those of `Rig`.
    """
    rig = Rig(context, payload)
    context.emit("ready", seconds=rig.left_s())
    sweep = Sweep(rig, payload)
    sweep.first_looks()
    if not sweep.runs:
        return {"settled": True, "limited_by": "data"}
    sweep.side_measurements()
    precisions = payload.get("precisions", [])
    precision_s = _PRECISION_SHARE * min(len(precisions), 2) * rig.left_s()
    measure_precisions(rig, sweep.runs, dict(sweep.peaks), precisions, precision_s)
    if payload.get("find_rate"):
        settle_rate(rig, sweep.runs, RATE_SHARE * rig.left_s())
    pilots = Pilots(
        rig,
        sweep.runs,
        payload["pilots"],
        limit=sweep.eval_limit,
        eval_sample_s=sweep.eval_sample_s,
        noise=payload["noise"],
    )
    if payload["pilots"]:
        claim_pilot(rig, pilots.least_s())
    left = rig.left_s() - _TEARDOWN_S
    pilot_s = min(PILOT_SHARE * left, pilots.wanted_s()) if payload["pilots"] else 0.0
    swept = {"settled": sweep.rounds(max(0.0, left - pilot_s)), "limited_by": sweep.limited_by}
    context.emit("swept", **swept)
    pilots.run(max(pilot_s, rig.left_s() - _TEARDOWN_S))
    return swept
