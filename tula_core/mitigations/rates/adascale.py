"""AdaScale: the learning rate grows by as much as averaging over a larger batch really lowers the noise.

Use: SGD beyond the batch where linear scaling diverges; in place of warm-up. Cost: one pass over the gradient and one
scalar all-reduce at each measured step. Hyperparameters: ``memory`` (0.9), the weight of the past in the moments' means
after a reference batch's samples. Evidence: trains without degradation where linear scaling fails, on five tasks
(abstract). Source: Johnson, Agrawal, Gu, Guestrin 2020, ICML, arXiv 2007.05105, algorithm 1.

>>> gain(squared_gradient=0.0, trace_covariance=1.0, reference_batch=32, scale=8.0)
8.0
>>> gain(squared_gradient=1.0, trace_covariance=0.0, reference_batch=32, scale=8.0)
1.0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tula_core.mitigations.method import GradientMoments, Method, Setting
from tula_core.mitigations.rates.averages import RunningMean


def gain(squared_gradient: float, trace_covariance: float, reference_batch: int, scale: float) -> float:
    """Return r = (var + sqr)/(var/S + sqr), within [1, S] (or [S, 1] where the batch is below the reference).

    Johnson et al. 2020, section 3. var = tr(Sigma)/B0, sqr = ||G||^2, S = B/B0. Averages are formed before they are
    limited: a limit on each step's noisy estimate would shift the mean. 1 where neither is above zero, for then nothing
    is known.

    Parameters
    ----------
    squared_gradient
        sqr, mean over steps; a negative mean counts as zero.
    trace_covariance
        tr(Sigma), mean over steps, per sample; a negative mean counts as zero.
    reference_batch
        B0, samples.
    scale
        S, above zero.
    """
    sqr, var = max(squared_gradient, 0.0), max(trace_covariance, 0.0) / reference_batch
    below = var / scale + sqr
    found = (var + sqr) / below if below > 0 else 1.0
    return min(max(found, min(1.0, scale)), max(1.0, scale))  # rounding of the smallest numbers is not a gain


class AdaScale(Method):
    """Multiplies the rate by the gain and moves the schedule by as much, so that it ends where the reference's would.

    At a fixed number of epochs the schedule may not be run to its end: it then stops where the gain has carried it.
    """

    needs_moments: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        keep = setting.options["memory"]
        self._sqr, self._var = RunningMean(keep), RunningMean(keep)
        self._gain = 1.0
        self._clock = 0.0  # samples of the reference schedule that are done

    def clock(self, samples_seen: float) -> float:
        """Return the reference schedule's position: each step of gain r is r reference steps."""
        return min(self._clock, float(self.setting.total_samples))

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate times the gain."""
        return planned * self._gain

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return the rates of the least and the largest gain."""
        scale = self.setting.scale
        return least * min(1.0, scale), most * max(1.0, scale)

    def observe(self, moments: GradientMoments) -> None:
        """Take the moments of a step into their means."""
        weight = moments.global_samples / self.setting.recipe.batch_size
        self._sqr.add(moments.squared_gradient, weight)
        self._var.add(moments.trace_covariance, weight)

    def after_step(self, network: Any, global_samples: int, samples_seen: int) -> None:
        """Advance the clock by the gain that the step used, then form the next."""
        reference = self.setting.recipe.batch_size
        self._clock += self._gain * global_samples / self.setting.scale  # a short last step moves it by its share
        self._gain = gain(self._sqr.value, self._var.value, reference, self.setting.scale)

    def state(self) -> dict[str, Any]:
        """Return means, gain and clock."""
        return {"sqr": self._sqr.state(), "var": self._var.state(), "gain": self._gain, "clock": self._clock}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up means, gain and clock."""
        self._sqr.restore(state["sqr"])
        self._var.restore(state["var"])
        self._gain, self._clock = state["gain"], state["clock"]

    def decided(self) -> dict[str, float]:
        """Return the gain, and the reference steps done."""
        return {"gain": self._gain, "reference_steps": self._clock / self.setting.recipe.batch_size}
