"""EMA and SWA: the weights that are evaluated are an average over the run's last part.

Use: always worth a try, above all where the rate does not come down to nothing. Cost: one pass over the weights at
each update, or epoch; a copy of the weights. Hyperparameters: EMA ``keep`` (0.999) of the average kept after 256
samples' worth of updates; SWA ``begins`` (0.75), the share of the run after which each epoch's end is averaged.
Evidence: averaging extends the batch sizes that are useful (Zhang et al. 2019, arXiv 1907.04164, abstract). Sources:
Izmailov et al. 2018, arXiv 1803.05407, algorithm 1; the horizon counted in samples after Zhang et al. 2019. Averages
are torch's own `torch.optim.swa_utils.AveragedModel`; batch-norm statistics are estimated anew for what is evaluated.

>>> round(decay(0.999, 2560), 6), round(decay(0.999, 256), 6)
(0.990045, 0.999)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tula_core.mitigations.method import Batches, Method, Setting, own
from tula_core.mitigations.normalization.statistics import estimate_statistics

_PER_SAMPLES = 256  # the batch for which a decay is usually stated


def decay(keep: float, samples: float) -> float:
    """Return keep^(samples/256): the average forgets alike per sample, whatever the batch size."""
    return float(keep ** (samples / _PER_SAMPLES))


def _blend(share: float) -> Any:
    return get_ema_multi_avg_fn(share)  # type: ignore[no-untyped-call]


class _Averaged(Method):
    """Keeps an average beside the network and lends it for evaluation."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._average: Any = None
        self._waiting: Mapping[str, Any] | None = None

    def average(self, network: nn.Module) -> Any:
        """Return the average, made from the network where there is none yet."""
        if self._average is None:
            self._average = self._make(network)
            if self._waiting is not None:
                self._average.load_state_dict(self._waiting)
                self._waiting = None
        return self._average

    def _make(self, network: nn.Module) -> Any:
        return AveragedModel(network)

    @property
    def begun(self) -> bool:
        """Whether anything has been averaged."""
        return self._average is not None and int(self._average.n_averaged) > 0

    @contextlib.contextmanager
    def evaluating(self, network: nn.Module, batches: Batches) -> Iterator[None]:
        """Put the average into the network, with statistics of its own, and the network back afterwards."""
        if self._waiting is not None:
            self.average(network)
        if not self.begun:
            yield
            return
        buffers = own(list(network.buffers()))
        self._swap(network)
        try:
            estimate_statistics(network, batches)
            yield
        finally:
            self._swap(network)
            for buffer, kept in zip(network.buffers(), buffers, strict=True):
                buffer.copy_(kept)

    @torch.no_grad()
    def _swap(self, network: nn.Module) -> None:
        """Exchange weights and average one tensor at a time: no third copy of the weights is made."""
        for mine, averaged in zip(network.parameters(), self._average.module.parameters(), strict=True):
            kept = mine.detach().clone()
            mine.copy_(averaged)
            averaged.copy_(kept)

    def state(self) -> dict[str, Any]:
        """Return the average."""
        return {"average": None if self._average is None else self._average.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the average once the network is known."""
        self._average, self._waiting = None, state["average"]


class Ema(_Averaged):
    """Exponential mean of the weights; its horizon is in samples and short at the beginning."""

    def _make(self, network: nn.Module) -> Any:
        return AveragedModel(network, multi_avg_fn=_blend(self.setting.options["keep"]))

    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Blend the weights in; early on with a memory no longer than what has been seen."""
        average = self.average(network)
        done = int(average.n_averaged)
        share = min(decay(self.setting.options["keep"], global_samples), (1 + done) / (10 + done))
        average.multi_avg_fn = _blend(share)
        average.update_parameters(network)


class Swa(_Averaged):
    """Plain mean of the weights at the ends of the last epochs."""

    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Take the weights in where an epoch ends in the run's last part."""
        epochs_before = (samples_seen - global_samples) // self.setting.train_samples
        ended = samples_seen // self.setting.train_samples > epochs_before
        if ended and samples_seen > self.setting.options["begins"] * self.setting.total_samples:
            self.average(network).update_parameters(network)
