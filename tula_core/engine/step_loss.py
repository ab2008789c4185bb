"""The loss of one step where it is no mean over samples: sums, divided by the weight of all targets of the step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tula_core.engine.batches import Step
from tula_core.engine.context import WorkerContext
from tula_core.workloads import WeightedLoss
from tula_core.workloads.types import Loss

_SMALLEST = 1e-30  # in place of a step's weight of zero, where every sum is zero too


class SummedLoss:
    """A step's loss in the place of a mean over samples: made anew for each step, called for each micro-batch.

    With the sums s_i and weights w_i of the micro-batches of all processes, of n_i samples each, it is
    (s_i / n_i) (sum n / sum w). Weighted by their samples, as any loss is, these add up to sum s / sum w. The targets
    are known before the forward pass, so the processes agree on the weight while it runs.
    """

    def __init__(self, loss: WeightedLoss, step: Step, context: WorkerContext, *, communicate: bool = True) -> None:
        self._loss = loss
        self._samples = step.global_samples
        # A micro-batch counts for fewer samples than are in it where an epoch's rest did not go round.
        weights: list[Any] = [
            loss.weight(targets) * (size / len(targets))
            for (_, targets), size in zip(step.micro_batches, step.sizes, strict=True)
        ]
        self._weight = torch.stack(weights).sum().to(context.device, torch.float64)
        self._scale: Tensor | None = None
        self._waiting: Any = None
        if context.processes > 1 and communicate:
            self._waiting = dist.all_reduce(self._weight, async_op=True)
        elif context.processes > 1:
            self._weight *= context.processes  # as if the others had the same

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the micro-batch's loss."""
        return self._loss.total(output, target) * (self._samples_per_weight() / len(target))

    def _samples_per_weight(self) -> Tensor:
        if self._scale is None:
            if self._waiting is not None:
                self._waiting.wait()
            self._scale = self._samples / self._weight.clamp_min(_SMALLEST)
        return self._scale


def step_loss(loss: Loss, weighted: WeightedLoss | None, step: Step, context: WorkerContext, communicate: bool) -> Loss:
    """Return what `run_step` calls for each micro-batch of ``step``."""
    return loss if weighted is None else SummedLoss(weighted, step, context, communicate=communicate)
