"""The band of every quantity of many configurations at once, each in one stage: its value and 90 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.blocks import in_blocks
from tula_core.models.forecasting import (
    PAUSE_SD,
    Band,
    Models,
    evaluation_time,
    mean_step,
    memory_band,
    run_interruptions,
    slowed,
)
from tula_core.models.inference.fitting import standard_draws
from tula_core.models.learning.fit import DRAWS
from tula_core.models.learnt import Learnt
from tula_core.models.money import Seconds, Spending, expected_attempts, interrupted, spend
from tula_core.models.spot import Interruptions
from tula_core.models.step.time import Shapes
from tula_core.models.totals import checkpoint_share, steps_per_epoch, tail_shapes, time_to_train_s

Array = NDArray[np.float64]

_BLOCK = 256  # configurations whose draws are made at once: what a core keeps near itself


def forecast_bands(models: Models, shapes: Shapes, learnt: Learnt, limits_w: Array | None = None) -> dict[str, Band]:
    """Return the band of every quantity that is known, by the names of `tula_core.records.QUANTITIES`.

    Parameters
    ----------
    learnt
        What is forecast of learning for these configurations.
    limits_w
        Power limit of each accelerator, shape (n,), NaN where none is set; None sets none anywhere.
    """
    limits_w = np.full_like(shapes.nodes, np.nan) if limits_w is None else limits_w
    step_s, log_sd = slowed(models, limits_w, mean_step(models, shapes))
    correction = models.correction("step_time_s")
    steps = steps_per_epoch(models.facts.train_samples, shapes.global_batch)
    epochs = learnt.epochs.take(learnt.which)
    fixed_step = step_s * math.exp(correction.log_bias)
    fixed_sd = np.hypot(log_sd, correction.log_sd)
    corrected = "time_to_train_s" in models.corrections.by_quantity
    stops = run_interruptions(models, shapes)
    run = _run_parts(models, shapes, (step_s, log_sd) if corrected else (fixed_step, fixed_sd))
    total, paid = _run_bands(models, shapes, run, learnt, stops)
    bands = {
        "step_time_s": Band.log_normal(fixed_step, fixed_sd),
        "time_to_train_s": total,
        "epochs": epochs,
        "steps": epochs.map(lambda number: number * steps),
        **_money(models, shapes, limits_w, paid, stops),
    }
    memory = memory_band(models, shapes.local_batch, shapes.processes)
    if memory is not None:
        bands["memory_bytes"] = memory
    if learnt.accuracy is not None:
        bands["accuracy"] = learnt.accuracy.take(learnt.which)
    return bands


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Seconds of a part of many runs, shape (n,), and factors of their errors, exp(log sd x z), for draws z.

    Factors are made once for each log sd that differs, shape (k, draws), where few do; ``which`` of them a run has.
    """

    seconds: Array
    log_sd: Array
    normal: Array
    factors: Array | None
    which: NDArray[np.intp]

    @classmethod
    def of(cls, part: tuple[Array, Array], normal: Array) -> _Part:
        """Return a part from its seconds and their log sd, for standard normal draws of shape (draws,)."""
        seconds, log_sd = part
        sds, which = np.unique(log_sd, return_inverse=True)
        few = 2 * len(sds) <= len(log_sd)
        factors = np.exp(np.multiply.outer(sds, normal)) if few else None
        return cls(seconds=seconds, log_sd=log_sd, normal=normal, factors=factors, which=which)

    @classmethod
    def each(cls, part: tuple[Array, Array], normal: Array) -> _Part:
        """Return the same for a part whose log sd differs from run to run."""
        seconds, log_sd = part
        return cls(seconds=seconds, log_sd=log_sd, normal=normal, factors=None, which=np.zeros(0, dtype=np.intp))

    def drawn(self, block: slice) -> Array:
        """Return draws of the seconds of some of the runs, shape (rows, draws)."""
        if self.factors is None:
            found = np.multiply.outer(self.log_sd[block], self.normal)
            np.exp(found, out=found)
        else:
            found = self.factors[self.which[block]]
        found *= self.seconds[block, None]
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The parts of many runs: what is there once, and what each epoch takes; ``first_s`` of the first steps, (n,)."""

    start: _Part
    first_s: Array
    epoch: _Part
    evaluation: _Part


def _run_parts(models: Models, shapes: Shapes, step: tuple[Array, Array]) -> _Run:
    step_s, log_sd = step
    _, has_tail = tail_shapes(models.facts.train_samples, shapes)
    new_s = np.where(has_tail, models.overheads.new_shape_s, 0.0)
    epoch_s = step_s * steps_per_epoch(models.facts.train_samples, shapes.global_batch)
    steps, starts, evaluations, _ = standard_draws(DRAWS, 4, seed=3).T
    return _Run(
        start=_Part.of(models.overheads.start_up.predict(shapes.processes), starts),
        first_s=models.step.first_step_extra_s(shapes) + new_s,
        epoch=_Part.each((epoch_s, log_sd), steps),
        evaluation=_Part.of(evaluation_time(models, shapes, step_s), evaluations),
    )


def _run_bands(
    models: Models, shapes: Shapes, run: _Run, learnt: Learnt, stops: Interruptions | None
) -> tuple[Band, Band]:
    """Return the bands of seconds from launch to end, and of those that each node is paid for."""

    def both(block: slice) -> tuple[Band, Band]:
        seconds = _total(models, run, learnt, block)
        total, paid = interrupted(seconds, None if stops is None else stops.part(block), shapes.nodes[block])
        band = Band.of_draws(total.drawn_s, total.value_s)
        return band, band if paid is total else Band.of_mean(paid.drawn_s, paid.value_s)

    found = in_blocks(both, len(shapes.nodes), _BLOCK)
    return Band.joined([band for band, _ in found]), Band.joined([band for _, band in found])


def _total(models: Models, run: _Run, learnt: Learnt, block: slice) -> Seconds:
    """Return seconds of some runs from launch to end, uninterrupted; their value is the sum of the parts' values.

    Each draw is `time_to_train_s` of the parts' draws, worked out in place.
    """
    # A configuration is a row here: what is worked on together is together in memory.
    pause = np.exp(PAUSE_SD * standard_draws(DRAWS, 4, seed=3)[:, 3])
    checkpoint_s, which = models.overheads.checkpoint_s, learnt.which[block]
    correction = models.correction("time_to_train_s")
    factor = math.exp(correction.log_bias)
    value = time_to_train_s(
        run.start.seconds[block] + run.first_s[block],
        learnt.value[which],
        run.epoch.seconds[block],
        run.evaluation.seconds[block],
        np.asarray(checkpoint_s),
    )
    drawn = run.epoch.drawn(block)
    drawn += run.evaluation.drawn(block)
    drawn *= learnt.drawn[which]
    drawn *= 1.0 + checkpoint_share(checkpoint_s * pause)
    drawn += run.start.drawn(block)
    drawn += np.multiply.outer(run.first_s[block] + 2.0 * checkpoint_s, pause)
    if "time_to_train_s" in models.corrections.by_quantity:
        drawn *= np.exp(correction.log_sd * standard_draws(DRAWS, 1, seed=4)[:, 0]) * factor
    return Seconds(value_s=value * factor, drawn_s=drawn.T)


def _money(models: Models, shapes: Shapes, limits_w: Array, paid: Band, stops: Interruptions | None) -> dict[str, Band]:
    time_s = np.stack([paid.value, paid.low, paid.high])
    spending = Spending(cluster=models.job.cluster, power=models.power, limits_w=limits_w)
    attempts = expected_attempts(paid.value, None if stops is None else stops.paid(shapes.nodes))
    found = spend(spending, shapes, time_s, attempts)
    return {name: Band(value=band[0], low=band[1], high=band[2]) for name, band in found.items()}
