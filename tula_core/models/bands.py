"""The band of every quantity of many configurations at once, each in one stage: its value and 90 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.forecasting import (
    PAUSE_SD,
    Band,
    Models,
    correct_epochs,
    epoch_band,
    evaluation_time,
    learning_draws,
    mean_step,
    memory_band,
    metric_band,
    run_interruptions,
    slowed,
)
from tula_core.models.inference.fitting import standard_draws
from tula_core.models.learning.effects import Effects, distinct
from tula_core.models.learning.fit import DRAWS, Learning
from tula_core.models.money import Seconds, Spending, expected_attempts, interrupted, spend
from tula_core.models.step.time import Shapes
from tula_core.models.totals import steps_per_epoch, tail_shapes, time_to_train_s

Array = NDArray[np.float64]

_BLOCK = 128  # configurations whose draws are made at once: what a core keeps near itself


def forecast_bands(
    models: Models, shapes: Shapes, limits_w: Array | None = None, effects: Effects | None = None
) -> dict[str, Band]:
    """Return the band of every quantity that is known, by the names of `tula_core.records.QUANTITIES`.

    Parameters
    ----------
    limits_w
        Power limit of each accelerator, shape (n,), NaN where none is set; None sets none anywhere.
    effects
        Of methods that the pilots did not use, one row for each configuration; None for none.
    """
    limits_w = np.full_like(shapes.nodes, np.nan) if limits_w is None else limits_w
    step_s, log_sd = slowed(models, limits_w, mean_step(models, shapes))
    correction = models.correction("step_time_s")
    batches, acting, which = distinct(shapes.global_batch, effects)
    learning = learning_draws(models, batches, acting)
    epoch_draws = _epoch_draws(models, learning, len(batches))
    corrected = correct_epochs(models, epoch_draws)
    steps = steps_per_epoch(models.facts.train_samples, shapes.global_batch)
    by_batch = epoch_band(models, corrected)
    epochs = by_batch.take(which)
    fixed_step = step_s * math.exp(correction.log_bias)
    fixed_sd = np.hypot(log_sd, correction.log_sd)
    if "time_to_train_s" in models.corrections.by_quantity:
        taken = _Epochs.of(epoch_draws, epoch_band(models, epoch_draws), which)
        total, paid = _run_bands(models, shapes, (step_s, log_sd), taken)
    else:
        total, paid = _run_bands(models, shapes, (fixed_step, fixed_sd), _Epochs.of(corrected, by_batch, which))
    bands = {
        "step_time_s": Band.log_normal(fixed_step, fixed_sd),
        "time_to_train_s": total,
        "epochs": epochs,
        "steps": epochs.map(lambda number: number * steps),
        **_money(models, shapes, limits_w, paid),
    }
    memory = memory_band(models, shapes.local_batch, shapes.processes)
    if memory is not None:
        bands["memory_bytes"] = memory
    accuracy = metric_band(models, learning)
    if accuracy is not None:
        bands["accuracy"] = accuracy.take(which)
    return bands


def _epoch_draws(models: Models, learning: Learning | None, count: int) -> Array:
    """Return draws of whole epochs, shape (draws, count)."""
    cap = models.job.recipe.epochs
    if models.target is None:
        return np.full((DRAWS, count), float(cap))
    if learning is None:  # nothing is known of it: any number of epochs up to the cap
        return np.repeat(np.ceil((np.arange(DRAWS) + 0.5) / DRAWS * cap)[:, None], count, axis=1)
    return learning.epochs


@dataclass(frozen=True, kw_only=True, slots=True)
class _Epochs:
    """Draws of the epochs of each batch, shape (batches, draws), their value (batches,), and whose batch is which."""

    drawn: Array
    value: Array
    which: NDArray[np.intp]

    @classmethod
    def of(cls, draws: Array, band: Band, which: NDArray[np.intp]) -> _Epochs:
        return cls(drawn=np.ascontiguousarray(draws.T), value=band.value, which=which)


def _run_bands(models: Models, shapes: Shapes, step: tuple[Array, Array], epochs: _Epochs) -> tuple[Band, Band]:
    """Return the bands of seconds from launch to end, and of those that each node is paid for."""
    run = _run_parts(models, shapes, step)
    stops = run_interruptions(models, shapes)
    found = []
    for start in range(0, len(shapes.nodes), _BLOCK):
        block = slice(start, start + _BLOCK)
        seconds = _total(models, run.part(block), epochs.drawn[epochs.which[block]], epochs.value[epochs.which[block]])
        total, paid = interrupted(seconds, None if stops is None else stops.part(block), shapes.nodes[block])
        band = Band.of_draws(total.drawn_s, total.value_s)
        found.append((band, band if paid is total else Band.of_mean(paid.drawn_s, paid.value_s)))
    return Band.joined([band for band, _ in found]), Band.joined([band for _, band in found])


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunParts:
    """Seconds of a run's parts and the log sd of their errors, each of shape (n,)."""

    start_s: Array
    start_sd: Array
    first_s: Array
    epoch_s: Array
    step_sd: Array
    evaluation_s: Array
    evaluation_sd: Array

    def part(self, block: slice) -> _RunParts:
        return _RunParts(**{name: getattr(self, name)[block] for name in _RunParts.__slots__})


def _run_parts(models: Models, shapes: Shapes, step: tuple[Array, Array]) -> _RunParts:
    step_s, log_sd = step
    start_s, start_sd = models.overheads.start_up.predict(shapes.processes)
    evaluation_s, evaluation_sd = evaluation_time(models, shapes, step_s)
    _, has_tail = tail_shapes(models.facts.train_samples, shapes)
    new_s = np.where(has_tail, models.overheads.new_shape_s, 0.0)
    return _RunParts(
        start_s=start_s,
        start_sd=start_sd,
        first_s=models.step.first_step_extra_s(shapes) + new_s,
        epoch_s=step_s * steps_per_epoch(models.facts.train_samples, shapes.global_batch),
        step_sd=log_sd,
        evaluation_s=evaluation_s,
        evaluation_sd=evaluation_sd,
    )


def _total(models: Models, run: _RunParts, draws: Array, epochs: Array) -> Seconds:
    """Return seconds from launch to end, uninterrupted; their value is the sum of the parts' values.

    Parameters
    ----------
    draws, epochs
        Epochs of each configuration, shape (n, draws), and their value, (n,).
    """
    # A configuration is a row here: what is worked on together is together in memory.
    steps, starts, evaluations, pauses = standard_draws(DRAWS, 4, seed=3).T
    pause = np.exp(PAUSE_SD * pauses)
    checkpoint_s = models.overheads.checkpoint_s
    correction = models.correction("time_to_train_s")
    factor = math.exp(correction.log_bias)
    value = time_to_train_s(run.start_s + run.first_s, epochs, run.epoch_s, run.evaluation_s, np.asarray(checkpoint_s))
    drawn = time_to_train_s(
        _varied(run.start_s, run.start_sd, starts) + np.multiply.outer(run.first_s, pause),
        draws,
        _varied(run.epoch_s, run.step_sd, steps),
        _varied(run.evaluation_s, run.evaluation_sd, evaluations),
        checkpoint_s * pause,
    )
    if "time_to_train_s" in models.corrections.by_quantity:
        drawn = drawn * np.exp(correction.log_sd * standard_draws(DRAWS, 1, seed=4)[:, 0]) * factor
    return Seconds(value_s=value * factor, drawn_s=drawn.T)


def _varied(seconds: Array, log_sd: Array, normal: Array) -> Array:
    """Return seconds exp(log_sd z) for every z of shape (draws,), shape (n, draws)."""
    drawn = np.multiply.outer(log_sd, normal)
    np.exp(drawn, out=drawn)
    drawn *= seconds[:, None]
    return np.asarray(drawn)


def _money(models: Models, shapes: Shapes, limits_w: Array, paid: Band) -> dict[str, Band]:
    time_s = np.stack([paid.value, paid.low, paid.high])
    spending = Spending(cluster=models.job.cluster, power=models.power, limits_w=limits_w)
    stops = run_interruptions(models, shapes)
    attempts = expected_attempts(paid.value, None if stops is None else stops.paid(shapes.nodes))
    found = spend(spending, shapes, time_s, attempts)
    return {name: Band(value=band[0], low=band[1], high=band[2]) for name, band in found.items()}
