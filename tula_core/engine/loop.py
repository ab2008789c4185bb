"""One optimizer step, exact for any split of the global batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tula_core.engine.assemble import Trainee
from tula_core.engine.batches import Step
from tula_core.engine.moments import StepMoments
from tula_core.engine.step_loss import step_loss
from tula_core.mitigations.compose import Methods
from tula_core.mitigations.normalization.statistics import frozen_statistics
from tula_core.seeding import fold


class PartClock:
    """Seconds spent in each part of a step; the device is synchronised at every mark, so use it to profile only."""

    def __init__(self, trainee: Trainee) -> None:
        self._context = trainee.context
        self.seconds: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """Begin the first part of a step."""
        self._context.synchronise()
        self.seconds = {}
        self._last = time.perf_counter()

    def mark(self, part: str) -> None:
        """Charge the time since the last mark to ``part``."""
        self._context.synchronise()
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeeds:
    """Seeds of a step's random choices: of this process, and one that all processes share."""

    own: int = 0
    common: int = 0


_NO_SEEDS = StepSeeds()


def run_step(
    trainee: Trainee,
    step: Step,
    learning_rate: float,
    *,
    clock: PartClock | None = None,
    observe: Callable[[], None] | None = None,
    communicate: bool = True,
    seeds: StepSeeds = _NO_SEEDS,
    moments: StepMoments | None = None,
) -> tuple[Tensor, bool]:
    """Take one step and return this process's summed loss, shape ``()``, and whether the weights were updated.

    The gradient is that of the mean loss over all samples of the step: each micro-batch's mean loss is weighted by its
    samples, times the number of processes because data parallelism averages over them. A loss that is no mean over
    samples is summed instead, and divided by the weight of all targets of the step. Under fp16 a step whose gradients
    are not finite is skipped, and False returned.

    Parameters
    ----------
    observe
        Called when the gradients are complete and nothing has changed them yet.
    communicate
        False leaves the gradients unsynchronised; for timing the computation alone.
    seeds
        For the methods that draw at random.
    moments
        Measures the moments of this step's gradient for the methods that ask for them; None where it is not measured.
    """
    _set_learning_rate(trainee.optimizer, learning_rate)
    trainee.optimizer.zero_grad(set_to_none=True)
    if trainee.methods.alone:
        total = _alone(trainee, step, seeds)
    elif trainee.methods.perturbing:
        total = _twice(trainee, step, seeds, moments, communicate)
    else:
        total = _backward(trainee, step, seeds, moments, communicate)
    if clock is not None:
        clock.mark("compute")
    if observe is not None:
        observe()
    if moments is not None and (found := moments.end(step)) is not None:
        trainee.methods.observe(found)
    updated = _update(trainee)
    if clock is not None:
        clock.mark("optimizer")
    return total, updated


def _backward(trainee: Trainee, step: Step, seeds: StepSeeds, moments: StepMoments | None, communicate: bool) -> Tensor:
    """Add up the gradients of all micro-batches; return this process's summed loss."""
    methods = trainee.methods
    total: Tensor | float = 0.0
    weight = trainee.context.processes / step.global_samples
    loss_of = step_loss(trainee.workload.loss, trainee.weighted, step, trainee.context, communicate)
    weights = methods.loss_weights(len(step.micro_batches), seeds.common) if methods.weighting else None
    last = len(step.micro_batches) - 1
    for index, (batch, size) in enumerate(zip(step.micro_batches, step.sizes, strict=True)):
        moved = trainee.to_device(batch)
        counted = size / methods.copies
        for copy in range(methods.copies):
            inputs, targets = moved
            if methods.augmenting or methods.preparing:
                inputs, targets = _prepared(methods, moved, step.starts[index], fold(seeds.own, index), copy)
            if moments is not None:
                moments.before(inputs, targets, loss_of)
            with _synchronised(trainee, communicate and index == last and copy == methods.copies - 1):
                with trainee.autocast():
                    loss = loss_of(trainee.module(inputs), targets)
                factor = counted * weight if weights is None else counted * weight * weights[index]
                share = loss if factor == 1 else loss * factor
                (trainee.scaler.scale(share) if trainee.scaler is not None else share).backward()  # type: ignore[no-untyped-call]
            total = loss.detach() * counted + total
        if moments is not None:
            moments.after(index, step)
    assert isinstance(total, Tensor)
    return total


def _prepared(methods: Methods, batch: tuple[Any, Any], start: int, seed: int, copy: int) -> tuple[Any, Any]:
    """Return one copy of a micro-batch as the methods want it."""
    inputs, targets = batch
    if methods.augmenting:
        inputs = methods.augment(inputs, start, copy)
    if methods.preparing:
        inputs, targets = methods.prepare(inputs, targets, fold(seed, copy) if copy else seed)
    return inputs, targets


def _twice(trainee: Trainee, step: Step, seeds: StepSeeds, moments: StepMoments | None, communicate: bool) -> Tensor:
    """Take the gradient where a method moves the weights to by this process's own gradient; return the first loss."""
    (method,) = trainee.methods.perturbing
    drawn = torch.random.get_rng_state()
    total = _backward(trainee, step, seeds, None, False)
    method.perturb(trainee.network)
    trainee.optimizer.zero_grad(set_to_none=True)
    torch.random.set_rng_state(drawn)  # the same masks in both passes: their difference is the method's alone
    with frozen_statistics(trainee.network):
        _backward(trainee, step, seeds, moments, communicate)
    method.unperturb(trainee.network)
    return total


def _alone(trainee: Trainee, step: Step, seeds: StepSeeds) -> Tensor:
    """Make this process's own updates of a step, but for the last of them; return its summed loss.

    Each is of the mean loss over its own samples. Nothing is sent: the method brings the weights together afterwards.
    """
    (method,) = trainee.methods.alone
    method.begin_alone(trainee.network)
    total: Tensor | float = 0.0
    for number, part in enumerate(method.updates(step.sizes)):
        if number > 0:
            trainee.optimizer.step()
            method.after_alone(trainee.network)
            trainee.optimizer.zero_grad(set_to_none=True)
        own = replace(seeds, own=fold(seeds.own, number) if number else seeds.own)
        total = _backward(trainee, _part(step, part, trainee.context.processes), own, None, False) + total
    assert isinstance(total, Tensor)
    return total


def _part(step: Step, part: range, processes: int) -> Step:
    """Return some micro-batches of a step, as if all processes had as many samples."""
    sizes = tuple(step.sizes[index] for index in part)
    return replace(
        step,
        micro_batches=[step.micro_batches[index] for index in part],
        sizes=sizes,
        starts=tuple(step.starts[index] for index in part),
        global_samples=processes * sum(sizes),
    )


def settle_buckets(trainee: Trainee) -> None:
    """Let the data-parallel wrapper order its buckets before the first step.

    It orders them anew after its first backward pass, and with three processes or more the order decides how sums are
    rounded: a run taken up later would differ from one that went through. A sum of all parameters stands in for the
    network, so that nothing of a person's own is called once more than the run has steps.
    """
    wrapper = trainee.module
    if not isinstance(wrapper, DistributedDataParallel):
        return
    network = wrapper.module
    wrapper.module = _SumOfParameters(network)
    try:
        with _without_hooks(network):
            wrapper(torch.zeros((), device=trainee.device)).backward()
    finally:
        wrapper.module = network
    trainee.optimizer.zero_grad(set_to_none=True)


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


def _synchronised(trainee: Trainee, synchronise: bool) -> contextlib.AbstractContextManager[None]:
    if synchronise or not isinstance(trainee.module, DistributedDataParallel):
        return contextlib.nullcontext()
    return trainee.module.no_sync()


def _update(trainee: Trainee) -> bool:
    if trainee.scaler is None:
        trainee.optimizer.step()
        return True
    scale = trainee.scaler.get_scale()
    trainee.scaler.step(trainee.optimizer)
    trainee.scaler.update()
    return trainee.scaler.get_scale() >= scale  # the scale falls exactly when the step was skipped


def _set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
