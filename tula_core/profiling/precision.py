"""Timing steps in other precisions in turns with the recipe's, so that a drift of the machine meets both alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from tula_core.engine.assemble import Trainee, assemble
from tula_core.engine.batches import Step
from tula_core.engine.failures import kind_of
from tula_core.engine.loop import PartClock, run_step
from tula_core.engine.peak_memory import peak_bytes, release_unused, reset_peak
from tula_core.errors import StoppedError
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.timing import SizeRun
from tula_core.records import PrecisionTiming

MOST_SIZES = 3  # the smallest, the largest, and one between: enough for a saturating ratio
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 12
_TURN_STEPS = 3  # of each precision in a round, after one that warms what the other has cooled
_SLOWER = 3.0  # another precision is planned to take so many times as long, as on CPUs that emulate it
_LEAST_ERROR = 0.02  # of a ratio in logarithm, however well its rounds agree
_LEAST_STEPS = 14  # of both together: three each for the peaks, and two rounds of two each
_FEW_ERROR = 0.25
_GROWTH = 2.2  # fp32 activations over half ones
_RATE = 0.0


@dataclass(slots=True)
class _Turns:
    """Seconds of both precisions by round: medians of a round's steps."""

    compute: list[float] = field(default_factory=list)
    optimizer: list[float] = field(default_factory=list)


def sizes_to_time(runs: Sequence[SizeRun]) -> list[SizeRun]:
    """Return the smallest and the largest size and the one in the middle of them by ratio, of sizes that ascend."""
    if len(runs) <= MOST_SIZES:
        return list(runs)
    middle = math.sqrt(runs[0].local_batch * runs[-1].local_batch)
    between = min(runs[1:-1], key=lambda run: abs(math.log(run.local_batch / middle)))
    return [runs[0], between, runs[-1]]


def measure_precisions(
    rig: Rig, runs: Sequence[SizeRun], peaks: Mapping[int, int], precisions: Sequence[str], seconds: float
) -> None:
    """Time each precision at up to three sizes within about ``seconds``, and emit a record of each at once.

    A precision that fails, as where a device or a layer has none of it, is recorded with its reason and left; it says
    nothing of the recipe's own.

    Parameters
    ----------
    peaks
        Bytes of the process by local batch, in the recipe's precision.
    """
    fitting = [run for run in runs if _fits(rig, peaks[run.local_batch])]
    until = rig.left_s() - seconds
    for index, precision in enumerate(precisions):
        slice_s = max(0.0, rig.left_s() - until) / (len(precisions) - index)
        stop_at_s = rig.left_s() - slice_s
        # Never longer than its time: a large size that cannot be afforded leaves the slope to smaller ones.
        longest_s = slice_s / (_LEAST_STEPS * (1 + _SLOWER) / 2)
        chosen = sizes_to_time([run for run in fitting if run.estimate_s <= longest_s])
        for number, run in enumerate(chosen):
            left_s = rig.left_s() - stop_at_s
            if left_s <= 0:
                break
            timing = _try(rig, run, precision, left_s / (len(chosen) - number))
            if timing is not None:
                rig.context.emit("precision", **asdict(timing))
            if timing is not None and timing.outcome == "failed":
                break


def _try(rig: Rig, run: SizeRun, precision: str, seconds: float) -> PrecisionTiming | None:
    try:
        return _timed(rig, run, precision, seconds)
    except StoppedError:
        raise
    except Exception as error:
        if kind_of(error) == "out_of_memory" and run.local_batch > 1:
            return None  # one size too large says nothing of the precision
        return _failed(run, precision, f"{type(error).__name__}: {error}"[:200])
    finally:
        run.feed.pause()
        release_unused(rig.context.device)


def _fits(rig: Rig, peak: int) -> bool:
    """Return whether a second network beside the first surely fits, also where it needs more than the recipe's."""
    return rig.base_bytes + _GROWTH * max(peak - rig.base_bytes, 0) <= rig.memory_limit_bytes


def _timed(rig: Rig, run: SizeRun, precision: str, seconds: float) -> PrecisionTiming | None:
    recipe = rig.job.recipe.model_copy(update={"precision": precision})
    other = assemble(rig.workload, recipe, rig.context, seed=rig.job.seed)
    trainees = (rig.trainee, other)
    difference = _loss_difference(trainees, run.feed.next())
    if not math.isfinite(difference):
        return _failed(run, precision, "the loss at the initial weights is not finite")
    peaks = [_peak(rig, trainee, run.feed) for trainee in trainees]
    round_s = (1 + _TURN_STEPS) * (1 + _SLOWER) * run.estimate_s
    steps = _TURN_STEPS if seconds > _FEWEST_ROUNDS * round_s else 1
    turns = (_Turns(), _Turns())
    began_s = rig.left_s()
    for number in range(_MOST_ROUNDS):
        for trainee, turn in zip(trainees, turns, strict=True):
            _take_turn(trainee, run.feed, turn, steps)
        if began_s - rig.left_s() > seconds and number > 0:
            break
    own, changed = turns
    ratios = [math.log(b / a) for a, b in zip(own.compute, changed.compute, strict=True)]
    return PrecisionTiming(
        precision=precision,  # type: ignore[arg-type]
        local_batch=run.local_batch,
        outcome="ok",
        # Of the rounds' ratios and not of the sums: a stall counts in one round alone.
        compute_s=statistics.median(own.compute) * math.exp(statistics.median(ratios)),
        reference_compute_s=statistics.median(own.compute),
        ratio_error=error_of_median(ratios),
        optimizer_s=statistics.median(changed.optimizer),
        reference_optimizer_s=statistics.median(own.optimizer),
        peak_bytes=peaks[1],
        reference_peak_bytes=peaks[0],
        loss_difference=difference,
    )


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of a few values, from their median absolute deviation.

    1.253 x 1.4826 MAD / sqrt(n), of normal values; at least `_LEAST_ERROR`, and `_FEW_ERROR` from under three values.
    """
    if len(values) < _FEWEST_ROUNDS:
        return _FEW_ERROR
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return max(1.253 * deviation / math.sqrt(len(values)), _LEAST_ERROR)


def _take_turn(trainee: Trainee, feed: StepFeed, turn: _Turns, steps: int) -> None:
    run_step(trainee, feed.next(), _RATE)
    compute, optimizer = [], []
    for _ in range(steps):
        step = feed.next()
        clock = PartClock(trainee)
        run_step(trainee, step, _RATE, clock=clock)
        compute.append(clock.seconds["compute"])
        optimizer.append(clock.seconds["optimizer"])
    turn.compute.append(statistics.median(compute))
    turn.optimizer.append(statistics.median(optimizer))


def _peak(rig: Rig, trainee: Trainee, feed: StepFeed) -> int:
    """Return the peak of two steps, after one that brings the optimizer's state."""
    run_step(trainee, feed.next(), _RATE)
    release_unused(rig.context.device)
    reset_peak(rig.context.device)
    for _ in range(2):
        run_step(trainee, feed.next(), _RATE)
    return peak_bytes(rig.context.device)


def _loss_difference(trainees: tuple[Trainee, Trainee], step: Step) -> float:
    """Return the relative difference of one batch's loss: both have the initial weights."""
    losses = []
    for trainee in trainees:
        inputs, targets = trainee.to_device(step.micro_batches[0])
        with torch.random.fork_rng(devices=[]), torch.no_grad(), trainee.autocast():
            torch.manual_seed(0)
            losses.append(float(trainee.workload.loss(trainee.network(inputs), targets)))
    return abs(losses[1] - losses[0]) / max(abs(losses[0]), 1e-12)


def _failed(run: SizeRun, precision: str, why: str) -> PrecisionTiming:
    return PrecisionTiming(
        precision=precision,  # type: ignore[arg-type]
        local_batch=run.local_batch,
        outcome="failed",
        compute_s=None,
        reference_compute_s=None,
        ratio_error=None,
        optimizer_s=None,
        reference_optimizer_s=None,
        peak_bytes=None,
        reference_peak_bytes=None,
        loss_difference=None,
        failure=why,
    )
