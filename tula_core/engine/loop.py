"""One optimizer step, exact for any split of the global batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
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


NO_SEEDS = StepSeeds()
"""For a step without methods, which are all that draws from them."""
_AS_IT_IS = contextlib.nullcontext()


def run_step(
    trainee: Trainee,
    step: Step,
    learning_rate: float,
    *,
    clock: PartClock | None = None,
    observe: Callable[[], None] | None = None,
    communicate: bool = True,
    seeds: StepSeeds = NO_SEEDS,
    moments: StepMoments | None = None,
) -> tuple[list[Tensor], bool]:
    """Take one step; return the mean loss of each micro-batch, shape ``()``, and whether the weights were updated.

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
    _forget_gradients(trainee.optimizer)
    if trainee.methods.alone:
        losses = _alone(trainee, step, seeds)
    elif trainee.methods.perturbing:
        losses = _twice(trainee, step, seeds, moments, communicate)
    else:
        losses = _backward(trainee, step, seeds, moments, communicate)
    if clock is not None:
        clock.mark("compute")
    if observe is not None:
        observe()
    if moments is not None and (found := moments.end(step)) is not None:
        trainee.methods.observe(found)
    updated = _update(trainee)
    if clock is not None:
        clock.mark("optimizer")
    return losses, updated


def summed_loss(losses: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the sum over samples, float64 and shape ``()``, of the mean losses of micro-batches of ``sizes``."""
    means = torch.stack(list(losses)).double()
    return means @ torch.tensor(sizes, dtype=torch.float64, device=means.device)


def _backward(
    trainee: Trainee, step: Step, seeds: StepSeeds, moments: StepMoments | None, communicate: bool
) -> list[Tensor]:
    """Add up the gradients of all micro-batches; return their mean losses."""
    methods = trainee.methods
    losses: list[Tensor] = []
    weight = trainee.context.processes / step.global_samples
    loss_of = step_loss(trainee.workload.loss, trainee.weighted, step, trainee.context, communicate)
    weights = methods.loss_weights(len(step.micro_batches), seeds.common) if methods.weighting else None
    module = trainee.module if moments is None else moments.module
    last = len(step.micro_batches) - 1
    for index, (batch, size) in enumerate(zip(step.micro_batches, step.sizes, strict=True)):
        moved = trainee.to_device(batch)
        counted = size / methods.copies
        shown: list[Tensor] = []
        for copy in range(methods.copies):
            inputs, targets = moved
            if methods.augmenting or methods.preparing:
                inputs, targets = _prepared(methods, moved, step.starts[index], fold(seeds.own, index), copy)
            if moments is not None:
                moments.before(inputs, targets, loss_of)
            with _synchronised(module, communicate and index == last and copy == methods.copies - 1):
                with trainee.autocast():
                    loss = loss_of(module(inputs), targets)
                factor = counted * weight if weights is None else counted * weight * weights[index]
                share = loss if factor == 1 else loss * factor
                (trainee.scaler.scale(share) if trainee.scaler is not None else share).backward()  # type: ignore[no-untyped-call]
            shown.append(loss.detach())
            del loss, share  # with them goes the graph, before the next one is built
        if moments is not None:
            moments.after(index, step)
        losses.append(shown[0] if len(shown) == 1 else torch.stack(shown).mean())
    return losses


def _prepared(methods: Methods, batch: tuple[Any, Any], start: int, seed: int, copy: int) -> tuple[Any, Any]:
    """Return one copy of a micro-batch as the methods want it."""
    inputs, targets = batch
    if methods.augmenting:
        inputs = methods.augment(inputs, start, copy)
    if methods.preparing:
        inputs, targets = methods.prepare(inputs, targets, fold(seed, copy) if copy else seed)
    return inputs, targets


def _twice(
    trainee: Trainee, step: Step, seeds: StepSeeds, moments: StepMoments | None, communicate: bool
) -> list[Tensor]:
    """Take the gradient where a method moves the weights to by this process's own gradient; return the first losses."""
    (method,) = trainee.methods.perturbing
    drawn = torch.random.get_rng_state()
    losses = _backward(trainee, step, seeds, None, False)
    method.perturb(trainee.network)
    _forget_gradients(trainee.optimizer)
    torch.random.set_rng_state(drawn)  # the same masks in both passes: their difference is the method's alone
    with frozen_statistics(trainee.network):
        _backward(trainee, step, seeds, moments, communicate)
    method.unperturb(trainee.network)
    return losses


def _alone(trainee: Trainee, step: Step, seeds: StepSeeds) -> list[Tensor]:
    """Make this process's own updates of a step, but for the last of them; return the micro-batches' mean losses.

    Each is of the mean loss over its own samples. Nothing is sent: the method brings the weights together afterwards.
    """
    (method,) = trainee.methods.alone
    method.begin_alone(trainee.network)
    losses: list[Tensor] = []
    for number, part in enumerate(method.updates(step.sizes)):
        if number > 0:
            trainee.optimizer.step()
            method.after_alone(trainee.network)
            _forget_gradients(trainee.optimizer)
        own = replace(seeds, own=fold(seeds.own, number) if number else seeds.own)
        losses += _backward(trainee, _part(step, part, trainee.context.processes), own, None, False)
    return losses


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


def _synchronised(module: nn.Module, synchronise: bool) -> contextlib.AbstractContextManager[None]:
    if synchronise or not isinstance(module, DistributedDataParallel):
        return _AS_IT_IS
    return module.no_sync()


def _update(trainee: Trainee) -> bool:
    if trainee.scaler is None:
        trainee.optimizer.step()
        return True
    if trainee.methods.apart:
        _share_overflow(trainee)
    scale = trainee.scaler.get_scale()
    trainee.scaler.step(trainee.optimizer)
    trainee.scaler.update()
    return trainee.scaler.get_scale() >= scale  # the scale falls exactly when the step was skipped


def _share_overflow(trainee: Trainee) -> None:
    """Let all processes skip the update that one of them has to skip, so that they go on counting alike."""
    found = [weights.grad for weights in trainee.network.parameters() if weights.grad is not None]
    finite = all(bool(gradient.isfinite().all()) for gradient in found)
    if trainee.context.all_reduce_max([0.0 if finite else 1.0])[0] and finite:
        found[0].fill_(torch.inf)


def _forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return
    # What torch's own does, without the record for its profiler that costs more than all the rest.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
