"""The losses and metrics a job can name."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from tula_core.registry import Registry
from tula_core.workloads.types import Loss, Metric

_NO_LABEL = -(2**31)
"""In place of torch's -100, which would be left out in silence: as a label it is an error here."""

UNLABELLED = 255
"""The label of a pixel that has none, in the usual masks of segmentation."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (n, classes, ...) and class numbers (n, ...); every label counts."""
    return F.cross_entropy(output, target, ignore_index=_NO_LABEL)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error; refuses shapes that would only broadcast."""
    return F.mse_loss(_aligned(output, target), target.to(output.dtype))


def bce_with_logits(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of logits and targets in [0, 1]; refuses shapes that would broadcast."""
    return F.binary_cross_entropy_with_logits(_aligned(output, target), target.to(output.dtype))


def accuracy(output: Tensor, target: Tensor) -> tuple[float, int]:
    """Return the number of right answers and of targets; a single logit means the two classes 0 and 1."""
    if output.ndim == 1 or output.shape[1] == 1:
        predicted = (_aligned(output, target) > 0).to(target.dtype)
    else:
        _check_classes(output, target, "accuracy")
        predicted = output.argmax(dim=1)
    return float((predicted == target).sum().item()), target.numel()


def pixel_accuracy(output: Tensor, target: Tensor) -> tuple[float, int]:
    """Return the number of right answers and of pixels that have a label; 255 marks those without."""
    _check_classes(output, target, "pixel_accuracy")
    labelled = target != UNLABELLED
    return float(((output.argmax(dim=1) == target) & labelled).sum().item()), int(labelled.sum())


def top5_accuracy(output: Tensor, target: Tensor) -> tuple[float, int]:
    """Return how many targets are among the five largest logits, and the number of targets."""
    _check_classes(output, target, "top5_accuracy")
    best = output.topk(min(5, output.shape[1]), dim=1).indices
    return float((best == target.unsqueeze(1)).any(dim=1).sum().item()), target.numel()


def squared_error(output: Tensor, target: Tensor) -> tuple[float, int]:
    """Return the sum of squared errors and the number of values."""
    error = _aligned(output, target).double() - target.double()
    return float(error.square().sum().item()), target.numel()


def absolute_error(output: Tensor, target: Tensor) -> tuple[float, int]:
    """Return the sum of absolute errors and the number of values."""
    error = _aligned(output, target).double() - target.double()
    return float(error.abs().sum().item()), target.numel()


def _aligned(output: Tensor, target: Tensor) -> Tensor:
    if output.shape == target.shape:
        return output
    if output.numel() != target.numel() or output.shape[0] != target.shape[0]:
        raise ValueError(f"output has shape {tuple(output.shape)} and target {tuple(target.shape)}; they must agree")
    return output.reshape(target.shape)


def _check_classes(output: Tensor, target: Tensor, name: str) -> None:
    expected = (output.shape[0], *output.shape[2:])
    if target.is_floating_point() or target.dtype == torch.bool or tuple(target.shape) != expected:
        raise ValueError(
            f"{name} needs class numbers of shape {expected}, found {target.dtype} of shape {tuple(target.shape)}"
        )


LOSSES: Registry[Loss] = Registry(
    "loss",
    ("cross_entropy", cross_entropy),
    ("pixel_cross_entropy", functools.partial(F.cross_entropy, ignore_index=UNLABELLED)),
    ("mse", mse),
    ("bce_with_logits", bce_with_logits),
)

METRICS: Registry[Metric] = Registry(
    "metric",
    ("accuracy", Metric(name="accuracy", higher_is_better=True, ceiling=1.0, compute=accuracy)),
    ("pixel_accuracy", Metric(name="pixel_accuracy", higher_is_better=True, ceiling=1.0, compute=pixel_accuracy)),
    ("top5_accuracy", Metric(name="top5_accuracy", higher_is_better=True, ceiling=1.0, compute=top5_accuracy)),
    ("mse", Metric(name="mse", higher_is_better=False, ceiling=0.0, compute=squared_error)),
    ("mae", Metric(name="mae", higher_is_better=False, ceiling=0.0, compute=absolute_error)),
)
