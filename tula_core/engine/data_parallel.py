"""The data-parallel wrapper around a network: what it is told, and the order of its buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from tula_core.engine.context import WorkerContext
from tula_core.mitigations.normalization.ghost_batch_norm import GhostBatchNorm


def data_parallel(network: nn.Module, context: WorkerContext) -> nn.Module:
    """Return the network wrapped where there are several processes, as it is where there is one.

    Several wrappers may be around one network: a backward pass is averaged by the one that the forward pass went
    through, and each has buckets of its own, one more copy of the gradient.
    """
    if context.processes == 1:
        return network
    return DistributedDataParallel(
        network,
        device_ids=[context.device.index] if context.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # Running statistics do not enter a training forward pass, so rank 0's are sent only before they are
        # read (evaluate, checkpoint). Any other buffer may enter it and is kept equal at each step.
        broadcast_buffers=has_other_buffers(network),
    )


def has_other_buffers(network: nn.Module) -> bool:
    """Return whether the network has a buffer outside its batch-norm layers, ghost groups among them."""
    norms = (_BatchNorm, GhostBatchNorm)
    return any(
        True for layer in network.modules() if not isinstance(layer, norms) for _ in layer.buffers(recurse=False)
    )


def settle_buckets(wrapper: nn.Module) -> None:
    """Let a data-parallel wrapper order its buckets before the first step; nothing where it is none.

    It orders them anew after its first backward pass, and with three processes or more the order decides how sums are
    rounded: a run taken up later would differ from one that went through. A sum of all parameters stands in for the
    network, so that nothing of a person's own is called once more than the run has steps.
    """
    if not isinstance(wrapper, DistributedDataParallel):
        return
    network = wrapper.module
    wrapper.module = _SumOfParameters(network)
    try:
        with _without_hooks(network):
            wrapper(torch.zeros((), device=next(network.parameters()).device)).backward()
    finally:
        wrapper.module = network
    network.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _without_hooks(network: nn.Module) -> Iterator[None]:
    """Keep the hooks of a person's own on the parameters from being called."""
    kept = [(parameter, parameter._backward_hooks) for parameter in network.parameters() if parameter._backward_hooks]
    for parameter, _ in kept:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in kept:
            parameter._backward_hooks = hooks


class _SumOfParameters(nn.Module):
    """Reaches every trained parameter, the last registered first on the way back, as a network mostly does."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        # The wrapper shares buffers before a forward pass where it was told to, and fails where there is none.
        self.register_buffer("nothing", torch.zeros(1, device=self._trained[0].device))

    def forward(self, start: Tensor) -> Tensor:
        """Return the sum, shape ``()``."""
        for parameter in self._trained:
            start = start + parameter.float().sum()
        return start
