"""Running statistics of batch norm: left as they are, or estimated anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tula_core.mitigations.method import Batches

STATISTICS_BATCHES = 50


def tracked(network: nn.Module) -> list[nn.Module]:
    """Return the layers that keep running statistics, whatever their class."""
    return [layer for layer in network.modules() if isinstance(getattr(layer, "running_mean", None), Tensor)]


@contextlib.contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Let layers normalise by the batch and leave their running statistics as they are."""
    kept = [
        (layer, name, buffer.clone())
        for layer in tracked(network)
        for name, buffer in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, name, buffer in kept:
                getattr(layer, name).copy_(buffer)


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Batches) -> None:
    """Set the running statistics to plain means over some training batches, each module as it is while it trains.

    Izmailov et al. 2018, arXiv 1803.05407, section 3.1. A layer in evaluation mode trains on the statistics it came
    with, as in fine-tuning: it keeps them.
    """
    layers = [layer for layer in tracked(network) if layer.training]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        _reset(layer)
    try:
        for _, (inputs, _targets) in zip(range(STATISTICS_BATCHES), batches(), strict=False):
            network(inputs)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _reset(layer: nn.Module) -> None:
    for name, value in (("running_mean", 0.0), ("running_var", 1.0), ("num_batches_tracked", 0)):
        buffer = getattr(layer, name, None)
        if isinstance(buffer, Tensor):
            buffer.fill_(value)
    layer.momentum = None  # type: ignore[assignment]  # a plain mean over all batches
