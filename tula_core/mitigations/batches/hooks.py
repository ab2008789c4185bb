"""The hooks of the methods that grow the batch: where the learning-rate schedule stands meanwhile, and what comes next.

The stages themselves are part of the plan; see `tula_core.mitigations.batches.stages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tula_core.mitigations.batches.controller import next_batch
from tula_core.mitigations.batches.growth import BatchStage, seesaw
from tula_core.mitigations.method import GradientMoments, Method, Setting
from tula_core.mitigations.rates.averages import RunningMean
from tula_core.models.learning.schedules import schedule_factor


def held_clock(fraction: float, until: float) -> float:
    """Return the position of a schedule that stands still until ``until`` and then runs through, in [0, 1]."""
    return min(1.0, max(0.0, (fraction - until) / (1.0 - until)))


class Growth(Method):
    """Holds the rate at its peak while the batch grows, then lets the schedule run through."""

    def clock(self, samples_seen: float) -> float:
        """Return the schedule's position in samples."""
        total = self.setting.total_samples
        return held_clock(samples_seen / total, self.setting.options["until"]) * total

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate times what the first batch is of the reference batch, where that is more."""
        return planned * self._factor

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return both times what the rate is multiplied by."""
        return least * self._factor, most * self._factor

    @property
    def _factor(self) -> float:
        return max(1.0, min(self.setting.options["start"], self.setting.scale))


def seesaw_stages(setting: Setting) -> list[BatchStage]:
    """Return the stages of a run by its recipe's schedule."""
    recipe = setting.recipe
    return seesaw(
        recipe.batch_size,
        setting.global_batch,
        lambda fraction: float(schedule_factor(recipe.schedule, fraction)),
        setting.options["factor"],
        adaptive=recipe.optimizer != "sgd",
    )


class Seesaw(Method):
    """Lets rate and batch share what the schedule asks for."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._stages = seesaw_stages(setting)

    def clock(self, samples_seen: float) -> float:
        """Return the start of the schedule: the stages lower the rate instead."""
        return 0.0

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the peak times the factor of the stage in force."""
        fraction = samples_seen / self.setting.total_samples
        return planned * [stage for stage in self._stages if stage.from_fraction <= fraction][-1].rate_factor


class AdaptiveBatch(Method):
    """Asks for the batch that the measured noise allows, where an epoch ends and the cooldown is over."""

    needs_moments: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        keep = setting.options["memory"]
        self._sqr, self._var = RunningMean(keep), RunningMean(keep)
        self._epochs_since = 0

    def observe(self, moments: GradientMoments) -> None:
        """Take the moments of a step into their means."""
        weight = moments.global_samples / self.setting.recipe.batch_size
        self._sqr.add(moments.squared_gradient, weight)
        self._var.add(moments.trace_covariance, weight)

    @property
    def noise_scale_samples(self) -> float | None:
        """tr(Sigma)/||G||^2, None while the signal is not above nothing."""
        return max(self._var.value, 0.0) / self._sqr.value if self._sqr.value > 0 else None

    def next_batch(self, current: int) -> int:
        """Return the batch to go on with."""
        self._epochs_since += 1
        if self._epochs_since <= self.setting.options["cooldown"]:
            return current
        most = self.setting.global_batch
        chosen = next_batch(current, self.noise_scale_samples, self.setting.options["share"], most)
        if chosen != current:
            self._epochs_since = 0
        return chosen

    def state(self) -> dict[str, Any]:
        """Return the means and the epochs since the last change."""
        return {"sqr": self._sqr.state(), "var": self._var.state(), "epochs_since": self._epochs_since}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self._sqr.restore(state["sqr"])
        self._var.restore(state["var"])
        self._epochs_since = state["epochs_since"]

    def decided(self) -> dict[str, float]:
        """Return the noise scale where it is known."""
        scale = self.noise_scale_samples
        return {} if scale is None else {"noise_scale_samples": scale}
