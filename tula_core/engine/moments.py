"""`StepMoments`: the moments of a training step's gradient, for the methods that follow the noise.

With the mean gradients of a small group of n samples and of the whole step of N samples, a = ||g_n||^2, c = ||g_N||^2:

    G2 = (N c - n a)/(N - n)      unbiased for ||G||^2
    S  = (a - c)/(1/n - 1/N)      unbiased for tr(Sigma)

McCandlish et al. 2018, arXiv 1812.06162, appendix A.1. The small groups are the processes' shares, or one process's
first micro-batch, or a quarter of its only one.
"""

# Annotations stay evaluated here: the data-parallel wrapper checks those of the hook.

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tula_core.engine.assemble import Trainee
from tula_core.engine.batches import Step
from tula_core.engine.data_parallel import data_parallel, settle_buckets
from tula_core.engine.evaluate import preserved_random_states
from tula_core.engine.noise_meter import gradients, squared_norm, sum_of_squares
from tula_core.mitigations.method import GradientMoments
from tula_core.mitigations.normalization.statistics import frozen_statistics

MEASURE_EVERY = 10
"""Steps from one measurement to the next; each costs a pass over the gradient and one scalar all-reduce."""

SETTLED_AFTER = 10
"""Measurements after which every second one is left out: the noise scale then changes slowly beside a step."""

_PARTS = 4
# Of a step that is one micro-batch: a quarter costs half as much as a half does, and its noise stands out more.


def moments_of(small_square: float, large_square: float, small: int, large: int) -> GradientMoments | None:
    """Return the estimates from the squared norms of two batch sizes; None where a number is not finite.

    Parameters
    ----------
    small_square, large_square
        a and c.
    small, large
        n and N, samples, n < N.
    """
    if not (math.isfinite(small_square) and math.isfinite(large_square)):
        return None
    return GradientMoments(
        squared_gradient=(large * large_square - small * small_square) / (large - small),
        trace_covariance=(small_square - large_square) / (1.0 / small - 1.0 / large),
        global_samples=large,
    )


class StepMoments:
    """Measures every few steps; between them it costs nothing but a look at a flag.

    A hook written in Python makes every all-reduce slower, so it hangs on a wrapper of its own, through which only the
    measured steps go.

    Parameters
    ----------
    trainee
        Assembled.
    every
        Steps from one measurement to the next, the first step included; twice as many from the tenth on.

    Attributes
    ----------
    module
        What a measured step's forward passes go through.
    """

    def __init__(self, trainee: Trainee, every: int = MEASURE_EVERY) -> None:
        self._trainee = trainee
        self._every = every
        self._count = 0
        self._small_square = 0.0
        self._small = 0
        self.measuring = False
        self._micro: tuple[Any, Any, Callable[[Any, Any], Tensor]] | None = None
        self._square = torch.zeros((), dtype=torch.float64, device=trainee.device)
        self.module = data_parallel(trainee.network, trainee.context)
        self._distributed = isinstance(self.module, DistributedDataParallel)
        if isinstance(self.module, DistributedDataParallel):
            self.module.register_comm_hook(self, _measuring_all_reduce)
            settle_buckets(self.module)

    def next(self, step: Step) -> "StepMoments | None":
        """Return this meter where the coming step is measured; steps whose shares differ are not."""
        settled = self._count >= SETTLED_AFTER * self._every
        due = self._count % (2 * self._every if settled else self._every) == 0
        self._count += 1
        equal = step.global_samples == self._trainee.context.processes * sum(step.sizes)
        self.measuring = due and equal  # shares are equal on all processes or on none
        if not self.measuring:
            return None
        self._small = 0
        self._square.zero_()
        return self

    def add_bucket(self, buffer: Tensor) -> None:
        """Add the squared norm of a local bucket."""
        self._square += sum_of_squares(buffer.detach())

    def before(self, inputs: Any, targets: Any, loss: Callable[[Any, Any], Tensor]) -> None:
        """Keep a micro-batch at hand, a part of which may be looked at again."""
        self._micro = (inputs, targets, loss)

    def after(self, index: int, step: Step) -> None:
        """Read the gradient of the first of several micro-batches, before the others are added."""
        if self._distributed or index > 0:
            return
        if len(step.micro_batches) > 1:
            size = step.sizes[0]
            scale = (step.global_samples / size / self._loss_scale()) ** 2
            self._small_square, self._small = scale * squared_norm(gradients(self._trainee.network)), size
        elif step.sizes[0] >= 4:
            self._read_part()
        self._micro = None

    def end(self, step: Step) -> GradientMoments | None:
        """Return the step's moments once its gradient is complete."""
        context, scale = self._trainee.context, self._loss_scale() ** 2
        if self._distributed:
            local = float(self._square) / scale
            self._small_square = context.all_reduce_sum([local])[0] / context.processes
            self._small = step.global_samples // context.processes
        self.measuring = False
        if self._small == 0:
            return None
        large_square = squared_norm(gradients(self._trainee.network)) / scale
        return moments_of(self._small_square, large_square, self._small, step.global_samples)

    def state(self) -> int:
        """Return the steps counted, for a checkpoint."""
        return self._count

    def restore(self, count: int) -> None:
        """Take up the count."""
        self._count = count

    def _loss_scale(self) -> float:
        scaler = self._trainee.scaler
        return float(scaler.get_scale()) if scaler is not None else 1.0

    def _read_part(self) -> None:
        """Take the gradient of a part of a single process's only micro-batch, and leave no trace of it."""
        assert self._micro is not None
        inputs, targets, loss = self._micro
        if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor)):
            return
        network, part = self._trainee.network, max(2, len(inputs) // _PARTS)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        with preserved_random_states(), frozen_statistics(network):
            with self._trainee.autocast():
                value = loss(network(inputs[:part]), targets[:part])
            found = torch.autograd.grad(value, trained, allow_unused=True)
        self._small_square = squared_norm([gradient for gradient in found if gradient is not None])
        self._small = part


def _measuring_all_reduce(
    state: StepMoments,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    if state.measuring:
        state.add_bucket(buffer)
    buffer.mul_(1.0 / dist.get_world_size())  # as the wrapper itself does without a hook: a quotient rounds otherwise
    future: Any = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]
