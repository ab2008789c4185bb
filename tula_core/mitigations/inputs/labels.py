"""Label smoothing, mixup and cutmix: softer labels and mixed images regularise where a large batch no longer does.

Use: part of most recipes at large batches; training loss and accuracy are then of softened labels. Cost: none that
shows. Hyperparameters: ``label-smoothing`` ``share`` (0.1); ``mixup`` ``alpha`` (0.2); ``cutmix`` ``alpha`` (1.0).
Evidence: label smoothing and a tuned decay are in every 32k ResNet recipe of MLPerf (from memory). Sources: Szegedy
et al. 2016, arXiv 1512.00567, section 7; Zhang et al. 2018, arXiv 1710.09412, equation 1; Yun et al. 2019, arXiv
1905.04899, equation 1. Mixtures are torchvision's.

>>> import torch
>>> smoothed(torch.tensor([1]), classes=4, share=0.2)
tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tula_core.mitigations.method import Method


def smoothed(targets: Tensor, classes: int, share: float) -> Tensor:
    """Return (1 - e) onehot + e/C, shape (n, C) (Szegedy et al. 2016, section 7).

    Parameters
    ----------
    targets
        Class numbers, shape (n,), or probabilities, shape (n, C).
    classes
        C.
    share
        e, in [0, 1).
    """
    hard = functional.one_hot(targets, classes).float() if targets.ndim == 1 else targets
    return hard * (1.0 - share) + share / classes


class LabelSmoothing(Method):
    """Softens the labels of each micro-batch."""

    def prepare(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        """Return the inputs as they are and softened targets."""
        return inputs, smoothed(targets, int(self.setting.options["classes"]), self.setting.options["share"])


class _Mixed(Method):
    """Mixes the images of a micro-batch by one of torchvision's transforms."""

    kind = "MixUp"

    def prepare(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        """Return mixed inputs and targets; a batch of one has nothing to be mixed with."""
        from torchvision.transforms import v2

        if len(inputs) < 2:
            return inputs, targets
        alpha, classes = self.setting.options["alpha"], int(self.setting.options["classes"])
        mix = getattr(v2, self.kind)(alpha=alpha, num_classes=classes)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)
            mixed: tuple[Any, Any] = mix(inputs, targets)
        return mixed


class Mixup(_Mixed):
    """Convex mixtures of images and labels."""

    kind = "MixUp"


class Cutmix(_Mixed):
    """Patches of one image in another, labels by area."""

    kind = "CutMix"
