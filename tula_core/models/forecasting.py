"""From fitted models to bands: every quantity of many configurations at once, with its 90 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Job, Target
from tula_core.models.checkpoints import checkpoint_wait_s
from tula_core.models.hardware.elsewhere import StepTimes
from tula_core.models.inference.fitting import Z90, standard_draws
from tula_core.models.learning.effects import Effects, distinct
from tula_core.models.learning.fit import DRAWS, Learning, LearningModel
from tula_core.models.memory import MemoryModel
from tula_core.models.money import Seconds, Spending, expected_attempts, interrupted, interruptions, spend
from tula_core.models.power.node import NodePower
from tula_core.models.spot import Interruptions
from tula_core.models.step.methods import predict_with_methods
from tula_core.models.step.time import Shapes
from tula_core.models.totals import Overheads, steps_per_epoch, tail_shapes, time_to_train_s
from tula_core.records.corrections import Correction, Corrections
from tula_core.records.mitigation import MitigationEffect
from tula_core.records.profile import WorkloadFacts

Array = NDArray[np.float64]

_NO_CORRECTION = Correction(log_bias=0.0, log_sd=0.0, outcomes=0)
_MOST_LOG_SD = 3.0  # wider says no more, and keeps every number finite
_FORWARD_SHARE = 1.0 / 3.0  # of a training step: a backward pass costs about two forward ones
_FORWARD_SD = 0.7
PAUSE_SD = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Value and 90 % interval, each of shape (n,)."""

    value: Array
    low: Array
    high: Array

    @classmethod
    def log_normal(cls, value: Array, log_sd: Array) -> Band:
        """Return value exp(-+1.645 log_sd)."""
        width = np.exp(Z90 * np.minimum(log_sd, _MOST_LOG_SD))
        return cls(value=value, low=value / width, high=value * width)

    @classmethod
    def of_draws(cls, draws: Array, value: Array | None = None) -> Band:
        """Return quantiles of draws of shape (draws, n): 5 %, 50 % unless ``value`` is given, 95 %.

        The quantiles are draws themselves, so that whole numbers stay whole.
        """
        low, middle, high = np.quantile(draws, (0.05, 0.5, 0.95), axis=0, method="inverted_cdf")
        chosen = middle if value is None else value
        return cls(value=chosen, low=np.minimum(low, chosen), high=np.maximum(high, chosen))

    def map(self, function: Callable[[Array], Array]) -> Band:
        """Return the band of a quantity that rises with this one."""
        return Band(value=function(self.value), low=function(self.low), high=function(self.high))


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """All fitted models of one job."""

    job: Job
    facts: WorkloadFacts
    step: StepTimes
    memory: MemoryModel | None
    learning: LearningModel | None
    overheads: Overheads
    power: NodePower
    corrections: Corrections
    effects: Mapping[str, MitigationEffect] = field(default_factory=dict)  # of methods, by their names
    step_costs: Mapping[str, float] = field(default_factory=dict)  # of methods, by their names, over a plain step
    step_cost: float = 1.0  # that of the candidates at hand, which `with_methods` sets

    @property
    def target(self) -> Target | None:
        """The job's target."""
        return self.job.target if isinstance(self.job.target, Target) else None

    @property
    def curve(self) -> LearningModel | None:
        """The learning curve where it can be used: where a target is on the metric that pilots measured."""
        fits = self.target is None or self.target.metric == self.facts.metric
        return self.learning if fits else None

    def acting(self, methods: Sequence[Sequence[str]]) -> Effects | None:
        """Return what lists of methods do, None where nothing is known of any."""
        return Effects.of(methods, self.effects) if self.effects else None

    def with_methods(self, names: Sequence[str]) -> Models:
        """Return the models of candidates that train with these methods: costs of their steps multiply."""
        cost = math.prod(self.step_costs.get(name, 1.0) for name in names)
        return self if cost == self.step_cost else replace(self, step_cost=cost)

    def correction(self, quantity: str) -> Correction:
        """Return the correction of one quantity, none where history has none."""
        return self.corrections.by_quantity.get(quantity, _NO_CORRECTION)


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
    epoch_draws = _epoch_draws(models, shapes, effects)
    corrected = correct_epochs(models, epoch_draws)
    steps = steps_per_epoch(models.facts.train_samples, shapes.global_batch)
    epochs = epoch_band(models, corrected)
    fixed_step = step_s * math.exp(correction.log_bias)
    fixed_sd = np.hypot(log_sd, correction.log_sd)
    if "time_to_train_s" in models.corrections.by_quantity:
        run = _total(models, shapes, (step_s, log_sd), epoch_draws, epoch_band(models, epoch_draws).value)
    else:
        run = _total(models, shapes, (fixed_step, fixed_sd), corrected, epochs.value)
    total, paid = interrupted(run, run_interruptions(models, shapes), shapes.nodes)
    bands = {
        "step_time_s": Band.log_normal(fixed_step, fixed_sd),
        "time_to_train_s": Band.of_draws(total.drawn_s, total.value_s),
        "epochs": epochs,
        "steps": epochs.map(lambda number: number * steps),
        **_money(models, shapes, limits_w, Band.of_draws(paid.drawn_s, paid.value_s)),
    }
    memory = memory_band(models, shapes.local_batch, shapes.processes)
    if memory is not None:
        bands["memory_bytes"] = memory
    accuracy = _accuracy_band(models, shapes, effects)
    if accuracy is not None:
        bands["accuracy"] = accuracy
    return bands


def learning_draws(models: Models, batches: Array, effects: Effects | None = None) -> Learning | None:
    """Return draws of epochs, success and metric for global batches of shape (n,), uncorrected; None where unknown."""
    if models.curve is None:
        return None
    return models.curve.forecast(
        batches,
        train_samples=models.facts.train_samples,
        cap_epochs=models.job.recipe.epochs,
        schedule=models.job.recipe.schedule,
        target=None if models.target is None else models.target.value,
        effects=effects,
    )


def correct_epochs(models: Models, draws: Array) -> Array:
    """Return draws of epochs to a target, shape (draws, n), with history's correction; whole, from 1 to the cap."""
    if models.target is None or "epochs" not in models.corrections.by_quantity:
        return draws
    return np.minimum(wanted_epochs(models, draws), models.job.recipe.epochs)


def wanted_epochs(models: Models, draws: Array) -> Array:
    """Return draws of epochs with history's correction, whole, at least 1, also beyond the cap."""
    correction = models.correction("epochs")
    spread = correction.log_sd * standard_draws(DRAWS, 1, seed=2)
    return np.maximum(np.ceil(draws * np.exp(correction.log_bias + spread) - 1e-9), 1.0)


def memory_band(models: Models, local_batch: Array, processes: Array) -> Band | None:
    """Return bytes of the fullest process, corrected; None where memory is unknown."""
    if models.memory is None:
        return None
    value, low, high = models.memory.predict(local_batch, processes)
    correction = models.correction("memory_bytes")
    factor = math.exp(correction.log_bias)
    extra = Z90 * correction.log_sd * value
    below, above = np.hypot(value - low, extra), np.hypot(high - value, extra)
    return Band(
        value=np.round(value * factor),
        low=np.round(np.maximum(value - below, 0.0) * factor),
        high=np.round((value + above) * factor),
    )


def mean_step(models: Models, shapes: Shapes) -> tuple[Array, Array]:
    """Return mean seconds over the steps of an epoch, the smaller last one included, and their log sd."""
    full_s, log_sd = predict_with_methods(models.step, shapes, models.step_cost)
    tail, has_tail = tail_shapes(models.facts.train_samples, shapes)
    tail_s, _ = predict_with_methods(models.step, tail, models.step_cost)
    # A tail is never slower than a full step: it does a part of its work.
    tail_s = np.minimum(tail_s, full_s)
    full = np.floor(models.facts.train_samples / shapes.global_batch)
    mean_s = (full * full_s + np.where(has_tail, tail_s, 0.0)) / np.maximum(full + has_tail, 1.0)
    return mean_s, np.minimum(log_sd, _MOST_LOG_SD)


def _epoch_draws(models: Models, shapes: Shapes, effects: Effects | None) -> Array:
    """Return draws of whole epochs, shape (draws, n)."""
    cap, count = models.job.recipe.epochs, len(shapes.nodes)
    if models.target is None:
        return np.full((DRAWS, count), float(cap))
    unique, acting, where = distinct(shapes.global_batch, effects)
    learning = learning_draws(models, unique, acting)
    if learning is None:  # nothing is known of it: any number of epochs up to the cap
        return np.repeat(np.ceil((np.arange(DRAWS) + 0.5) / DRAWS * cap)[:, None], count, axis=1)
    return learning.epochs[:, where]


def epoch_band(models: Models, draws: Array) -> Band:
    """Return the band of epochs, shape (n,), of their draws."""
    if models.target is not None and models.curve is None:
        cap = np.full(draws.shape[1], float(models.job.recipe.epochs))
        return Band(value=cap, low=np.ones_like(cap), high=cap)
    return Band.of_draws(draws)


def _total(models: Models, shapes: Shapes, step: tuple[Array, Array], draws: Array, epochs: Array) -> Seconds:
    """Return seconds from launch to end, uninterrupted; their value is the sum of the parts' values."""
    step_s, log_sd = step
    over = models.overheads
    start_s, start_sd = over.start_up.predict(shapes.processes)
    _, has_tail = tail_shapes(models.facts.train_samples, shapes)
    first_s = models.step.first_step_extra_s(shapes) + np.where(has_tail, over.new_shape_s, 0.0)
    evaluation_s, evaluation_sd = evaluation_time(models, shapes, step_s)
    epoch_s = step_s * steps_per_epoch(models.facts.train_samples, shapes.global_batch)
    normal = np.exp(columns(standard_draws(DRAWS, 4, seed=3), (log_sd, start_sd, evaluation_sd, PAUSE_SD)))
    correction = models.correction("time_to_train_s")
    factor = math.exp(correction.log_bias)
    spread = np.exp(correction.log_sd * standard_draws(DRAWS, 1, seed=4))
    value = time_to_train_s(start_s + first_s, epochs, epoch_s, evaluation_s, np.asarray(over.checkpoint_s))
    drawn = time_to_train_s(
        start_s * normal[1] + first_s * normal[3],
        draws,
        epoch_s * normal[0],
        evaluation_s * normal[2],
        over.checkpoint_s * normal[3],
    )
    return Seconds(value_s=value * factor, drawn_s=drawn * spread * factor)


def evaluation_time(models: Models, shapes: Shapes, step_s: Array) -> tuple[Array, Array]:
    """Return seconds of one evaluation and their log sd; by what a step takes where none was measured."""
    if models.overheads.evaluation is not None:
        return models.overheads.evaluation.predict(shapes.processes)
    evaluation_s = models.facts.eval_samples / shapes.global_batch * step_s * _FORWARD_SHARE
    return evaluation_s, np.full_like(step_s, _FORWARD_SD)


def run_interruptions(models: Models, shapes: Shapes) -> Interruptions | None:
    """Return how spot nodes interrupt runs, None where they are not forecast to."""
    checkpoint_s = models.overheads.checkpoint_s
    start_s, _ = models.overheads.start_up.predict(shapes.processes)
    return interruptions(
        models.job.cluster, shapes.nodes, start_s, segment_s=checkpoint_wait_s(checkpoint_s) + checkpoint_s
    )


def slowed(models: Models, limits_w: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return mean seconds of a step and their log sd under power limits."""
    if not np.isfinite(limits_w).any():
        return step
    factor, log_sd = models.power.slowing(limits_w)
    return step[0] * factor, np.hypot(step[1], log_sd)


def columns(normal: Array, log_sd: tuple[Array | float, ...]) -> Array:
    """Return draws times each log standard deviation, shape (parts, draws, n)."""
    count = max(np.size(sd) for sd in log_sd)
    return np.stack([normal[:, i : i + 1] * np.broadcast_to(sd, (count,)) for i, sd in enumerate(log_sd)])


def _money(models: Models, shapes: Shapes, limits_w: Array, paid: Band) -> dict[str, Band]:
    time_s = np.stack([paid.value, paid.low, paid.high])
    spending = Spending(cluster=models.job.cluster, power=models.power, limits_w=limits_w)
    stops = run_interruptions(models, shapes)
    attempts = expected_attempts(paid.value, None if stops is None else stops.paid(shapes.nodes))
    found = spend(spending, shapes, time_s, attempts)
    return {name: Band(value=band[0], low=band[1], high=band[2]) for name, band in found.items()}


def _accuracy_band(models: Models, shapes: Shapes, effects: Effects | None) -> Band | None:
    unique, acting, where = distinct(shapes.global_batch, effects)
    band = metric_band(models, learning_draws(models, unique, acting))
    return None if band is None else Band(value=band.value[where], low=band.low[where], high=band.high[where])


def metric_band(models: Models, learning: Learning | None) -> Band | None:
    """Return the corrected band of the metric where training stops; None where nothing is known of it."""
    return None if learning is None or models.curve is None else corrected_metric(models, models.curve, learning.metric)


def corrected_metric(models: Models, curve: LearningModel, metric: Array) -> Band:
    """Return the band of draws of the metric, shape (draws, n), with history's correction; never beyond its ceiling."""
    correction = models.correction("accuracy")
    draws = metric * np.exp(correction.log_bias + correction.log_sd * standard_draws(DRAWS, 1, seed=5))
    ceiling = curve.scale.ceiling
    draws = np.minimum(draws, ceiling) if models.facts.higher_is_better else np.maximum(draws, ceiling)
    return Band.of_draws(draws)
