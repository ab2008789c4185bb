"""ConAdv: trains on clean images and on adversaries that were made with slightly older weights.

Use: very large batches, where regularisation is short and devices idle. Cost: a second forward and backward pass on
the inputs. Hyperparameters: ``size`` (0.03), the largest change of a pixel in units of the inputs. Evidence:
ResNet-50 at 96k 75.3 %, with augmentation 76.2 % (Liu et al. 2022, abstract). Source: Liu et al. 2022, arXiv
2106.00221; one step of the sign of the gradient after Goodfellow et al. 2015, arXiv 1412.6572, equation in section 4.
Here the adversary of a batch is kept and trained on at the step after it, so it is one update old; clean and
adversarial samples share batch norm, unlike the paper's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tula_core.mitigations.method import Method, Setting
from tula_core.mitigations.normalization.statistics import frozen_statistics


def adversary(network: nn.Module, inputs: Tensor, targets: Tensor, size: float) -> Tensor:
    """Return x + size sign(grad_x L): the inputs moved uphill, no number by more than ``size``.

    Goodfellow et al. 2015, section 4. The gradients of the parameters and the running statistics stay as they are.
    """
    with torch.enable_grad(), frozen_statistics(network):
        moved = inputs.detach().clone().requires_grad_(True)
        loss = functional.cross_entropy(network(moved), targets)
        (slope,) = torch.autograd.grad(loss, moved)
    return (inputs + size * slope.sign()).detach()


class ConAdv(Method):
    """Puts the adversaries of the step before in the place of half of this step's samples."""

    own_state: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._network: nn.Module | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    def network(self, network: nn.Module) -> nn.Module:
        """Keep the network, which the adversaries are made against."""
        self._network = network
        return network

    def prepare(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        """Return the clean samples with the last part replaced by the adversaries that are there."""
        assert self._network is not None
        half = len(inputs) // 2
        made = None
        if half:
            size = self.setting.options["size"]
            made = (adversary(self._network, inputs[:half], targets[:half], size), targets[:half].clone())
        kept, self._kept = self._kept, made
        if kept is None or half == 0:
            return inputs, targets
        count = min(half, len(kept[0]))
        return torch.cat([inputs[:-count], kept[0][:count]]), torch.cat([targets[:-count], kept[1][:count]])

    def state(self) -> dict[str, Any]:
        """Return the adversaries that wait for the next step."""
        return {"kept": None if self._kept is None else [part.cpu() for part in self._kept]}

    def restore(self, state: Any) -> None:
        """Take up the adversaries that waited."""
        kept = state["kept"]
        self._kept = None if kept is None else (kept[0], kept[1])
