"""LARS and LAMB: the update of each layer is a fixed share of its weights, so that one large rate serves all layers.

Use: LARS for SGD, LAMB for Adam and its relatives, from about 32 times the reference batch on. Cost: two norms per
tensor. Hyperparameters: LARS ``trust`` (0.02) and LAMB ``clip`` (0, no clipping of the global gradient norm); the
rate is the recipe's times ``rate_factor``. Evidence: ResNet-50 to 32k without loss (You et al. 2017, abstract); a
tuned Nesterov rate reaches the same (Nado et al. 2021, arXiv 2102.06356). Sources: You, Gitman, Ginsburg 2017, arXiv
1708.03888; You et al. 2020, arXiv 1904.00962, version 3, without bias correction. The optimizers are those of the
package pytorch-optimizer. Tensors with one axis (biases, norms) take a plain step without decay, so a zero bias
moves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tula_core.job import Recipe
from tula_core.mitigations.method import Method


def parameter_groups(network: nn.Module, weight_decay: float, **plain: Any) -> list[dict[str, Any]]:
    """Return two groups: tensors with more than one axis with decay, the others without it and with ``plain``."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    layers = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [{"params": layers, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0, **plain}]
    return [group for group in groups if group["params"]]


class Lars(Method):
    """SGD with a trust ratio for each layer; the rate is outside the momentum buffer, as in torch's SGD."""

    def optimizer(self, network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
        """Return LARS with the recipe's momentum and decay."""
        from pytorch_optimizer import LARS

        found: torch.optim.Optimizer = LARS(
            parameter_groups(network, recipe.weight_decay),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            trust_coefficient=self.setting.options["trust"],
        )
        return found

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate times the method's factor."""
        return planned * self.setting.options["rate_factor"]

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return both times the method's factor."""
        factor = self.setting.options["rate_factor"]
        return least * factor, most * factor


class Lamb(Method):
    """Adam with a trust ratio for each layer."""

    def optimizer(self, network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
        """Return LAMB with the recipe's decay."""
        from pytorch_optimizer import Lamb as LambOptimizer

        clip = self.setting.options["clip"]
        found: torch.optim.Optimizer = LambOptimizer(
            parameter_groups(network, recipe.weight_decay, adam=True),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            # Without it 1/(1 - beta1^t) enters outside the trust ratio: the first step is ten times too long.
            adam_debias=True,
            pre_norm=clip > 0,
            max_grad_norm=clip,
        )
        return found

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the planned rate times the method's factor."""
        return planned * self.setting.options["rate_factor"]

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return both times the method's factor."""
        factor = self.setting.options["rate_factor"]
        return least * factor, most * factor
