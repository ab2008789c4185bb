r"""Measures how noisy the gradient is while training.

With M independent groups of n samples each, whose mean gradients are g_k, and their mean gbar:

    a = mean_k ||g_k||^2,  c = ||gbar||^2
    G2 = (M c - a) / (M - 1)          unbiased for ||G||^2
    S  = n M (a - c) / (M - 1)        unbiased for tr(Sigma)
    noise scale = mean[S] / mean[G2]  a ratio of averages, in samples

McCandlish et al. 2018, arXiv 1812.06162, appendix A.1, written for equal groups.
"""

# Annotations stay evaluated here: the data-parallel wrapper checks those of the hook.

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tula_core.engine.assemble import Trainee
from tula_core.records import GradientNoise

_PIECE = 2**18  # numbers; where sums are in float64 a whole layer would be copied to it, twice its own size


def noise_estimates(group_square: float, mean_square: float, groups: int, group_samples: int) -> tuple[float, float]:
    """Return (G2, S), the unbiased estimates of ||G||^2 and tr(Sigma); see the module's equations.

    Parameters
    ----------
    group_square, mean_square
        a and c, squared norms.
    groups, group_samples
        M >= 2 and n.
    """
    signal = (groups * mean_square - group_square) / (groups - 1)
    noise = group_samples * groups * (group_square - mean_square) / (groups - 1)
    return signal, noise


class NoiseMeter:
    """Collects estimates; nothing is clamped before it is averaged."""

    def __init__(self, groups: int, group_samples: int) -> None:
        self.groups = groups
        self.group_samples = group_samples
        self._signals: list[float] = []
        self._noises: list[float] = []

    def add(self, group_square: float, mean_square: float) -> None:
        """Take the squared norms of one step; a step with a non-finite one is left out."""
        if math.isfinite(group_square) and math.isfinite(mean_square):
            signal, noise = noise_estimates(group_square, mean_square, self.groups, self.group_samples)
            self._signals.append(signal)
            self._noises.append(noise)

    def result(self) -> GradientNoise | None:
        """Return the averages, None without any estimate; the noise scale is None while the signal is uncertain."""
        count = len(self._signals)
        if count == 0:
            return None
        signal, noise = math.fsum(self._signals) / count, math.fsum(self._noises) / count
        spread = math.fsum((value - signal) ** 2 for value in self._signals) / max(count - 1, 1)
        clear = count > 1 and signal > 2 * math.sqrt(spread / count)
        return GradientNoise(
            small_batch=self.group_samples,
            large_batch=self.group_samples * self.groups,
            estimates=count,
            squared_gradient=signal,
            trace_covariance=noise,
            noise_scale_samples=max(noise, 0.0) / signal if clear else None,
        )


class HookedNoise:
    """Reads the squared norms of local and averaged gradients in a communication hook of the data-parallel wrapper.

    The hook sees each process's accumulated local gradient just before it is averaged, so the estimate costs one pass
    over the gradient and one scalar all-reduce per step.
    """

    def __init__(self, trainee: Trainee, meter: NoiseMeter) -> None:
        assert isinstance(trainee.module, DistributedDataParallel)
        self._trainee = trainee
        self._meter = meter
        self._square: Tensor = torch.zeros((), dtype=torch.float64, device=trainee.device)
        trainee.module.register_comm_hook(self, _measuring_all_reduce)

    def add_bucket(self, buffer: Tensor) -> None:
        """Add the squared norm of a local bucket."""
        self._square += sum_of_squares(buffer.detach())

    def end_step(self) -> None:
        """Hand one estimate to the meter; give it to `run_step` as ``observe``."""
        scale = self._trainee.scaler.get_scale() if self._trainee.scaler is not None else 1.0
        local = float(self._square) / scale**2
        self._square.zero_()
        group = self._trainee.context.all_reduce_sum([local])[0] / self._trainee.context.processes
        self._meter.add(group, squared_norm(gradients(self._trainee.network)) / scale**2)

    def discard_step(self) -> None:
        """Forget the step at hand; the ``observe`` of one whose groups are smaller than the meter's."""
        self._square.zero_()


def _measuring_all_reduce(
    state: HookedNoise,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    state.add_bucket(buffer)
    buffer.div_(dist.get_world_size())
    future: Any = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def gradients(network: torch.nn.Module) -> list[Tensor]:
    """Return the gradients that are there."""
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """Return the sum of squares over all tensors, accumulated in float64."""
    sums = [sum_of_squares(tensor.detach()) for tensor in tensors]
    return float(torch.stack(sums).sum()) if sums else 0.0


def sum_of_squares(tensor: Tensor) -> Tensor:
    """Return the sum of squares in float64, shape ``()``; of a large tensor never more than a piece is copied to it."""
    if tensor.numel() <= _PIECE:
        norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
        return norm.square()
    rows = _PIECE * len(tensor) // tensor.numel()
    pieces = torch.split(tensor, rows) if rows else torch.unbind(tensor)
    return torch.stack([sum_of_squares(piece) for piece in pieces]).sum()
