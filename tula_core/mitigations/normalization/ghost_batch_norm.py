"""Ghost batch norm: normalises groups of the local batch apart, so that its noise stays a small batch's.

Use: networks with batch norm at large local batches; do not synchronise batch norm as well. Cost: a copy of each
activation that is normalised (1.7 times the step on processors, little on accelerators). Hyperparameters: ``group``
(32) samples that are normalised together. Evidence: part of the recovery of 2 to 4 points at 4,096 on CIFAR (Hoffer
et al. 2017, table 1, from memory). Source: Hoffer, Hubara, Soudry 2017, arXiv 1705.08741, algorithm 1.

>>> group_sizes(101, 10)
[11, 10, 10, 10, 10, 10, 10, 10, 10, 10]
>>> group_sizes(7, 32)
[7]
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from tula_core.mitigations.method import Method


def group_sizes(samples: int, group: int) -> list[int]:
    """Return the sizes of the groups: as many as fit whole, their sizes differ by at most one, none below ``group``.

    A last group of one sample, whose variance is nothing, cannot come about.
    """
    count = max(1, samples // group)
    base, extra = divmod(samples, count)
    return [base + (index < extra) for index in range(count)]


def running_after(running: Tensor, statistics: Tensor, momentum: float) -> Tensor:
    """Return (1-m)^L r + sum_l (1-m)^(L-l) m s_l: the running statistic after the groups in their order.

    Hoffer et al. 2017, algorithm 1. Shapes: ``running`` (C,), ``statistics`` (L, C).
    """
    count = len(statistics)
    powers = torch.arange(count - 1, -1, -1, device=statistics.device, dtype=statistics.dtype)
    weights = momentum * (1.0 - momentum) ** powers
    return (1.0 - momentum) ** count * running + weights @ statistics


class GhostBatchNorm(nn.Module):
    """Stands in for a batch-norm layer and shares its parameters and buffers, under their own names.

    Parameters
    ----------
    layer
        The layer to stand in for.
    group
        Samples that are normalised together in training.
    """

    def __init__(self, layer: _BatchNorm, group: int) -> None:
        super().__init__()
        self.group = group
        self.eps, self.momentum = layer.eps, layer.momentum
        self.weight, self.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        if not layer.track_running_stats:
            self.running_mean = self.running_var = self.num_batches_tracked = None
        self.training = layer.training

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs, shape ``(n, C, ...)`` as given."""
        if not self.training:
            return self._evaluated(inputs)
        sizes = group_sizes(len(inputs), self.group)
        parts, means, variances = [], [], []
        start = 0
        for size, run in itertools.groupby(sizes):
            count = len(list(run))
            part = inputs[start : start + size * count]
            start += size * count
            normalised, mean, variance = self._normalise(part, count, size)
            parts.append(normalised)
            means.append(mean)
            variances.append(variance)
        self._follow(torch.cat(means), torch.cat(variances))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _evaluated(self, inputs: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        batch_statistics = mean is None
        return functional.batch_norm(inputs, mean, variance, self.weight, self.bias, batch_statistics, 0.0, self.eps)

    def _normalise(self, part: Tensor, count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a part of ``count`` groups of ``size`` normalised, with means and unbiased variances (count, C)."""
        channels, rest = part.shape[1], part.shape[2:]
        # Groups become channels of their own, so that one native call does them all.
        wide = part.reshape(count, size, channels, *rest).transpose(0, 1).reshape(size, count * channels, *rest)
        kind = torch.float64 if part.dtype == torch.float64 else torch.float32  # halves keep their statistics in floats
        mean = torch.zeros(count * channels, device=part.device, dtype=kind)
        variance = torch.zeros_like(mean)
        weight = None if self.weight is None else self.weight.repeat(count)
        bias = None if self.bias is None else self.bias.repeat(count)
        found = functional.batch_norm(wide, mean, variance, weight, bias, True, 1.0, self.eps)
        back = found.reshape(size, count, channels, *rest).transpose(0, 1).reshape(part.shape)
        return back, mean.view(count, channels), variance.view(count, channels)

    @torch.no_grad()
    def _follow(self, means: Tensor, variances: Tensor) -> None:
        running_mean, running_var = self.running_mean, self.running_var
        if running_mean is None or running_var is None:
            return
        tracked = self.num_batches_tracked
        if tracked is not None:
            tracked.add_(1)
        if self.momentum is None:  # a plain mean over all batches
            share = 1.0 / float(tracked) if tracked is not None else 1.0
            running_mean.lerp_(means.mean(dim=0), share)
            running_var.lerp_(variances.mean(dim=0), share)
        else:
            running_mean.copy_(running_after(running_mean, means, self.momentum))
            running_var.copy_(running_after(running_var, variances, self.momentum))


def with_ghost_groups(network: nn.Module, group: int) -> nn.Module:
    """Return the network with every batch-norm layer replaced; parameters and buffers are the same objects."""
    if isinstance(network, _BatchNorm):
        return GhostBatchNorm(network, group)
    for name, child in network.named_children():
        setattr(network, name, with_ghost_groups(child, group))
    return network


class GhostBatchNormMethod(Method):
    """Replaces the layers before training."""

    def network(self, network: Any) -> Any:
        """Return the network with ghost groups."""
        return with_ghost_groups(network, int(self.setting.options["group"]))
