"""Schedule-Free: averaging of the iterates takes the place of the learning-rate schedule, so the end need not be known.

Use: runs whose length is open, such as those that stop at a target, and short ones at up to 16 times the batch. Cost:
none that shows; batch-norm statistics are estimated anew before each evaluation. Hyperparameters: ``rate_factor`` (10)
over the recipe's rate, for SGD 10 to 50, for Adam 1 to 10; ``warmup_share`` (0.05) of the run. Evidence: best of its
class in a public contest of optimizers (abstract). With SGD and the square-root rule, on validation splits, a
convolutional network at 2.5 times the batch kept all of the small batch's 87.3 %, where the fixed batch lost 1.0 at
the best of three rates, and a perceptron at 16 times lost 0.7 in a sixteenth of the steps; at 32 and 64 times the
batch it was hardly better than a fixed one. Source: Defazio et al. 2024, arXiv 2405.15682, equations 3 to 5. The
optimizers are those of the package pytorch-optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tula_core.job import Recipe
from tula_core.mitigations.method import Batches, Method, Setting
from tula_core.mitigations.normalization.statistics import estimate_statistics


class ScheduleFree(Method):
    """Brings the optimizer, holds the rate after a warm-up and evaluates the average."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._optimizer: Any = None

    def optimizer(self, network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
        """Return the schedule-free kin of the recipe's optimizer."""
        from pytorch_optimizer import ScheduleFreeAdamW, ScheduleFreeSGD

        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        rate, decay = recipe.learning_rate, recipe.weight_decay
        found: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            found = ScheduleFreeSGD(parameters, lr=rate, momentum=max(recipe.momentum, 0.1), weight_decay=decay)
        else:
            found = ScheduleFreeAdamW(parameters, lr=rate, weight_decay=decay)
        self._optimizer = found
        return found

    def clock(self, samples_seen: float) -> float:
        """Return the start of the schedule: the rate is never lowered."""
        return 0.0

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate times the factor, rising from nothing over the warm-up."""
        options = self.setting.options
        warm = options["warmup_share"] * self.setting.total_samples
        rising = (
            1.0
            if samples_seen >= warm
            else (samples_seen + self.setting.global_batch) / (warm + self.setting.global_batch)
        )
        return planned * options["rate_factor"] * rising

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return both times the method's factor."""
        factor = self.setting.options["rate_factor"]
        return least * factor, most * factor

    @contextlib.contextmanager
    def evaluating(self, network: nn.Module, batches: Batches) -> Iterator[None]:
        """Put the average in the place of the weights, with statistics of its own, and back."""
        buffers = {name: buffer.detach().clone() for name, buffer in network.named_buffers()}
        self._optimizer.eval()
        try:
            estimate_statistics(network, batches)
            yield
        finally:
            self._optimizer.train()
            for name, buffer in network.named_buffers():
                buffer.copy_(buffers[name])
