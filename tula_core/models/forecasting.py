"""`Models`, all that is fitted to a job, `Band`, and what forecasts of one stage and of several have in common."""

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
from tula_core.models.learning.effects import Effects
from tula_core.models.learning.fit import DRAWS, Learning, LearningModel
from tula_core.models.memory import MemoryModel
from tula_core.models.money import interruptions
from tula_core.models.power.node import NodePower
from tula_core.models.spot import Interruptions
from tula_core.models.step.methods import predict_with_methods, seconds_with_methods
from tula_core.models.step.time import Shapes
from tula_core.models.totals import Overheads, tail_shapes
from tula_core.records.corrections import Correction, Corrections
from tula_core.records.mitigation import MitigationEffect
from tula_core.records.profile import WorkloadFacts

Array = NDArray[np.float64]

_NO_CORRECTION = Correction(log_bias=0.0, log_sd=0.0, outcomes=0)
_MOST_LOG_SD = 3.0  # wider says no more, and keeps every number finite
_FORWARD_SHARE = 1.0 / 3.0  # of a training step: a backward pass costs about two forward ones
_FORWARD_SD = 0.7
PAUSE_SD = 0.3
_KEPT_SHARE = 0.2  # by how much what methods keep may be off: allocators, and tensors that live for a moment


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

        The quantiles are draws themselves, so that whole numbers stay whole: of m draws the ceil(p m)-th smallest.
        """
        # Whole rows that are beside each other in memory are sorted many times faster than quantiles are picked out.
        ordered = np.sort(np.ascontiguousarray(draws.T), axis=1)
        count = ordered.shape[1]
        low, middle, high = (ordered[:, math.ceil(share * count) - 1] for share in (0.05, 0.5, 0.95))
        chosen = middle if value is None else value
        lacking = np.where(np.isnan(ordered[:, -1]), np.nan, 0.0)  # one draw that is no number leaves no quantile
        return cls(
            value=chosen + lacking, low=np.minimum(low, chosen) + lacking, high=np.maximum(high, chosen) + lacking
        )

    @classmethod
    def of_mean(cls, draws: Array, mean: Array) -> Band:
        """Return the mean with an interval that holds nine of ten draws of shape (draws, n), and the mean.

        Of what is seldom and dear, such as a stop that few runs meet, the mean may be more than nineteen of twenty
        draws. Where it is more than nine of ten the interval is moved up until half of the draws above the mean lie in
        it; elsewhere it is that of `of_draws`.
        """
        ordered = np.sort(np.ascontiguousarray(draws.T), axis=1)
        count, rows = ordered.shape[1], np.arange(len(ordered))
        rank = (ordered <= mean[:, None]).mean(axis=1)
        top = np.maximum((1.0 + rank) / 2.0, 0.95)
        low, high = (ordered[rows, np.maximum(np.ceil(p * count).astype(int) - 1, 0)] for p in (top - 0.9, top))
        lacking = np.where(np.isnan(ordered[:, -1]), np.nan, 0.0)
        return cls(value=mean + lacking, low=np.minimum(low, mean) + lacking, high=np.maximum(high, mean) + lacking)

    @classmethod
    def joined(cls, bands: Sequence[Band]) -> Band:
        """Return bands one after the other."""
        columns = ([getattr(band, name) for band in bands] for name in ("value", "low", "high"))
        return cls(**dict(zip(("value", "low", "high"), map(np.concatenate, columns), strict=True)))

    def take(self, places: NDArray[np.intp]) -> Band:
        """Return the band at places of shape (m,)."""
        return Band(value=self.value[places], low=self.low[places], high=self.high[places])

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
    kept_copies: Mapping[str, float] = field(default_factory=dict)  # of the gradients, which methods keep, by names
    kept: float = 0.0  # by the candidates at hand, which `with_methods` sets

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
        """Return the models of candidates that train with these methods.

        Costs of their steps multiply, and what they keep in memory adds up.
        """
        cost = math.prod(self.step_costs.get(name, 1.0) for name in names)
        kept = sum(self.kept_copies.get(name, 0.0) for name in names)
        return self if (cost, kept) == (self.step_cost, self.kept) else replace(self, step_cost=cost, kept=kept)

    def correction(self, quantity: str) -> Correction:
        """Return the correction of one quantity, none where history has none."""
        return self.corrections.by_quantity.get(quantity, _NO_CORRECTION)


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
    kept = models.kept * models.facts.gradient_bytes
    slack = _KEPT_SHARE * abs(kept)
    value, low, high = value + kept, low + kept - slack, high + kept + slack
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
    tail_s = np.zeros_like(full_s)
    if has_tail.any():
        found = seconds_with_methods(models.step, tail.part(has_tail), models.step_cost)
        # A tail is never slower than a full step: it does a part of its work.
        tail_s[has_tail] = np.minimum(found, full_s[has_tail])
    full = np.floor(models.facts.train_samples / shapes.global_batch)
    mean_s = (full * full_s + tail_s) / np.maximum(full + has_tail, 1.0)
    return mean_s, np.minimum(log_sd, _MOST_LOG_SD)


def epoch_band(models: Models, draws: Array) -> Band:
    """Return the band of epochs, shape (n,), of their draws."""
    if models.target is not None and models.curve is None:
        cap = np.full(draws.shape[1], float(models.job.recipe.epochs))
        return Band(value=cap, low=np.ones_like(cap), high=cap)
    return Band.of_draws(draws)


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
