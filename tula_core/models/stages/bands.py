"""The band of every quantity of runs that go through several stages, each stage with its own layout."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.checkpoints import CHECKPOINT_EVERY_S, CHECKPOINT_SHARE
from tula_core.models.forecasting import (
    PAUSE_SD,
    Band,
    Models,
    columns,
    correct_epochs,
    epoch_band,
    evaluation_time,
    mean_step,
    memory_band,
    metric_band,
    run_interruptions,
    slowed,
)
from tula_core.models.inference.fitting import standard_draws
from tula_core.models.learning.effects import Effects
from tula_core.models.learning.fit import DRAWS, Learning
from tula_core.models.money import Seconds, interrupted
from tula_core.models.stages.spending import WorldTimes, staged_money
from tula_core.models.stages.walk import Walk, walk
from tula_core.models.step.time import Shapes
from tula_core.models.totals import tail_shapes
from tula_core.records.candidate import Candidate

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """Seconds of a step of each stage and their log sd, shape (stages,), without what history corrects."""

    step_s: Array
    log_sd: Array


def staged_bands(models: Models, candidates: Sequence[Candidate]) -> list[dict[str, Band]]:
    """Return the band of every quantity that is known, each of shape (1,), of each of many staged candidates.

    Steps of all stages of all candidates are forecast at once. What is learnt is drawn once for each course of batches:
    whichever processes share a batch, as much is learnt of it.
    """
    courses = [walk(each.stages or (), models.facts.train_samples, models.job.recipe.epochs) for each in candidates]
    drawn: dict[Hashable, Learning | None] = {}
    bands = []
    for candidate, course, clock in zip(candidates, courses, _clocks(models, candidates, courses), strict=True):
        known = (candidate.mitigation, course.shapes.global_batch.tobytes(), course.samples.tobytes())
        if known not in drawn:
            drawn[known] = staged_learning(models, course, models.acting([candidate.mitigation]))
        bands.append(course_bands(models, course, clock, drawn[known], candidate.power_limit_w))
    return bands


def _clocks(models: Models, candidates: Sequence[Candidate], courses: Sequence[Walk]) -> list[Clock]:
    if not courses:
        return []
    shapes = Shapes.joined([course.shapes for course in courses])
    counts = [len(course.shapes.nodes) for course in courses]
    limits = [math.nan if each.power_limit_w is None else each.power_limit_w for each in candidates]
    ends = np.cumsum(counts)[:-1]
    step = slowed(models, np.repeat(limits, counts), mean_step(models, shapes))
    return [Clock(step_s=s, log_sd=sd) for s, sd in zip(*(np.split(each, ends) for each in step), strict=True)]


def course_bands(
    models: Models, course: Walk, clock: Clock, learning: Learning | None, limit_w: float | None = None
) -> dict[str, Band]:
    """Return the band of every quantity that is known, each of shape (1,).

    The errors of all stages are taken to go together: what one stage takes longer than forecast, so does another.

    Parameters
    ----------
    limit_w
        Power limit of each accelerator, None where none is set.
    """
    correction = models.correction("step_time_s")
    fixed = Clock(step_s=clock.step_s * math.exp(correction.log_bias), log_sd=np.hypot(clock.log_sd, correction.log_sd))
    draws = _epoch_draws(models, learning)
    corrected = correct_epochs(models, draws)
    epochs = epoch_band(models, corrected)
    if "time_to_train_s" in models.corrections.by_quantity:
        run = _world_times(models, course, clock, draws, epoch_band(models, draws).value)
    else:
        run = _world_times(models, course, fixed, corrected, epochs.value)
    worlds = _worlds(course)
    stops = run_interruptions(models, worlds)
    total, paid = interrupted(run, stops, worlds.nodes)
    times = WorldTimes(shapes=worlds, value_s=paid.value_s, drawn_s=paid.drawn_s, stops=stops)
    bands = {
        "step_time_s": _step_band(course, fixed, epochs.value),
        "time_to_train_s": Band.of_draws(total.drawn_s.sum(axis=1, keepdims=True), total.value_s.sum(keepdims=True)),
        "epochs": epochs,
        "steps": epochs.map(lambda number: _rows(course.steps, number).sum(axis=1)),
        **staged_money(models, times, limit_w),
    }
    memory = memory_band(models, course.shapes.local_batch, course.shapes.processes)
    if memory is not None:
        bands["memory_bytes"] = Band(
            value=memory.value.max(keepdims=True),
            low=memory.low.max(keepdims=True),
            high=memory.high.max(keepdims=True),
        )
    accuracy = metric_band(models, learning)
    return bands if accuracy is None else {**bands, "accuracy": accuracy}


def staged_learning(models: Models, course: Walk, effects: Effects | None) -> Learning | None:
    """Return draws of epochs, success and metric, uncorrected, each of shape (draws, 1); None where unknown."""
    if models.curve is None:
        return None
    return models.curve.forecast_course(
        course.shapes.global_batch,
        course.samples,
        schedule=models.job.recipe.schedule,
        target=None if models.target is None else models.target.value,
        effects=effects,
    )


def _epoch_draws(models: Models, learning: Learning | None) -> Array:
    cap = models.job.recipe.epochs
    if models.target is None:
        return np.full((DRAWS, 1), float(cap))
    if learning is None:  # nothing is known of it: any number of epochs up to the cap
        return np.ceil((np.arange(DRAWS) + 0.5) / DRAWS * cap)[:, None]
    return learning.epochs


def _rows(table: Array, epochs: Array) -> Array:
    """Return the rows of a table at numbers of epochs of shape (n,) or (n, 1), shape (n, stages)."""
    return np.asarray(table[epochs.astype(int).ravel()])


def _step_band(course: Walk, clock: Clock, epochs: Array) -> Band:
    """Return the band of the mean over all steps."""
    steps = _rows(course.steps, epochs)[0]
    seconds = steps * clock.step_s
    log_sd = np.array([(seconds * clock.log_sd).sum() / seconds.sum()])
    return Band.log_normal(np.array([seconds.sum() / steps.sum()]), log_sd)


def _world_times(models: Models, course: Walk, clock: Clock, draws: Array, epochs: Array) -> Seconds:
    """Return seconds from the launch of each world to its end, uninterrupted; their value is the sum of the parts'."""
    over, shapes = models.overheads, course.shapes
    start_s, start_sd = over.start_up.predict(shapes.processes)
    evaluation_s, evaluation_sd = evaluation_time(models, shapes, clock.step_s)
    first_s = _first_steps_s(models, course)
    checkpoints_s = np.where(np.arange(len(start_s)) == 0, 2.0, np.where(course.opens_world, 1.0, 0.0))
    checkpoints_s = checkpoints_s * over.checkpoint_s
    start_s = np.where(course.opens_world, start_s, 0.0)
    share = 1.0 + min(over.checkpoint_s / CHECKPOINT_EVERY_S, CHECKPOINT_SHARE)
    sds = (clock.log_sd, start_sd, evaluation_sd, PAUSE_SD)
    normal = np.exp(columns(standard_draws(DRAWS, 4, seed=3), sds))

    def seconds(at: Array, factors: Sequence[Array | float]) -> Array:
        steps, made = _rows(course.steps, at), _rows(course.evaluations, at)
        once = start_s * factors[1] + (first_s + checkpoints_s) * factors[3]
        several = (steps * clock.step_s * factors[0] + made * evaluation_s * factors[2]) * share
        return _by_world(course, np.where(steps > 0, once, 0.0) + several)

    correction = models.correction("time_to_train_s")
    factor = math.exp(correction.log_bias)
    spread = np.exp(correction.log_sd * standard_draws(DRAWS, 1, seed=4))
    value_s = seconds(epochs, (1.0, 1.0, 1.0, 1.0))[0] * factor
    return Seconds(value_s=value_s, drawn_s=seconds(draws, list(normal)) * spread * factor)


def _first_steps_s(models: Models, course: Walk) -> Array:
    """Return what the first steps of each stage take beyond steady ones: its own batch is a new shape, a tail too."""
    shapes, new_s = course.shapes, models.overheads.new_shape_s
    _, has_tail = tail_shapes(models.facts.train_samples, shapes)
    first_s = np.where(course.opens_world, models.step.first_step_extra_s(shapes), new_s)
    return np.asarray(first_s + np.where(has_tail, new_s, 0.0))


def _by_world(course: Walk, by_stage: Array) -> Array:
    """Return sums over the stages of each world, shape (n, worlds)."""
    return np.add.reduceat(by_stage, np.flatnonzero(course.opens_world), axis=1)


def _worlds(course: Walk) -> Shapes:
    """Return each world by its last, largest stage."""
    last = np.append(np.flatnonzero(course.opens_world)[1:], len(course.world)) - 1
    shapes = course.shapes
    return Shapes(
        nodes=shapes.nodes[last],
        processes_per_node=shapes.processes_per_node[last],
        local_batch=shapes.local_batch[last],
        accumulation=shapes.accumulation[last],
    )
