"""Losses that are a mean over something else than samples: labelled pixels, class weights.

The mean over a global batch is then no mean of the micro-batches' means: each would count the same, however few of its
targets carry a label. Told apart, sum and weight add up exactly over any split.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.trial import all_targets, few_indices, read_batch
from tula_core.workloads.types import Loss, Workload

_SMALLEST = 1e-30  # in place of a weight of zero: the sum is zero too, and 0/0 would be no number


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedLoss:
    """A loss whose mean is a sum divided by a weight; give it as a workload's ``loss``.

    Attributes
    ----------
    total
        ``(output, target) -> scalar``, the sum over the batch; 0 where nothing counts.
    weight
        ``target -> scalar``, what the sum is to be divided by; both add up over batches. The gradient of a step is that
        of all its sums divided by all its weights, over every micro-batch and process.
    """

    total: Callable[[Tensor, Tensor], Tensor]
    weight: Callable[[Tensor], Tensor]

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean over one batch."""
        return self.total(output, target) / self.weight(target).to(output.device).clamp_min(_SMALLEST)


def as_weighted(loss: Any) -> WeightedLoss | None:
    """Return a loss as sum and weight, None where it is taken for a mean over samples.

    Known by themselves: `WeightedLoss`, torch's cross-entropy and negative log likelihood as module, function, or
    function with arguments fixed by ``functools.partial``.
    """
    if isinstance(loss, WeightedLoss):
        return loss
    known = _arguments(loss)
    if known is None:
        return None
    function, options = known
    if options.pop("reduction", "mean") != "mean":
        return None
    classes, ignored = options.pop("weight", None), options.pop("ignore_index", -100)

    def total(output: Tensor, target: Tensor) -> Tensor:
        weight = None if classes is None else classes.to(output.device, output.dtype)
        summed: Tensor = function(output, target, weight=weight, ignore_index=ignored, reduction="sum", **options)
        return summed

    return WeightedLoss(total=total, weight=functools.partial(_label_weight, classes=classes, ignored=ignored))


def loss_of_steps(workload: Workload) -> WeightedLoss | None:
    """Return the workload's loss as sum and weight where its mean over samples would be wrong, else None.

    Where every label of the training set is at hand and none is left out or weighted, the mean over samples is the
    same and costs nothing.
    """
    weighted = as_weighted(workload.loss)
    if weighted is None or isinstance(workload.loss, WeightedLoss):
        return weighted
    dataset: Any = workload.train_set()
    with fixed_randomness():
        indices = few_indices(len(dataset))
        _, targets = read_batch(workload, dataset, indices, "train_data")
    known = all_targets(dataset, list(zip(indices, targets, strict=True))) if workload.collate is None else None
    if known is not None and float(weighted.weight(known)) == known.numel() and not known.is_floating_point():
        return None
    return weighted


def is_mean_of_samples(loss: Loss, output: Tensor, target: Tensor) -> bool:
    """Return whether a loss over a batch is the mean of its losses over single samples; True where it cannot tell."""
    try:
        whole = float(loss(output, target))
        single = [float(loss(output[i : i + 1], target[i : i + 1])) for i in range(len(output))]
    except Exception:  # it may take this one size alone, and then nothing can be said
        return True
    mean = sum(single) / len(single)
    return not abs(whole - mean) > 1e-3 * max(abs(whole), abs(mean))


def _arguments(loss: Any) -> tuple[Callable[..., Tensor], dict[str, Any]] | None:
    """Return the function of torch behind a loss and the arguments that it fixes."""
    for module, function in ((nn.CrossEntropyLoss, F.cross_entropy), (nn.NLLLoss, F.nll_loss)):
        if isinstance(loss, module) and type(loss).forward is module.forward:
            names = ("weight", "ignore_index", "reduction", "label_smoothing")
            return function, {name: getattr(loss, name) for name in names if hasattr(loss, name)}
        if loss is function:
            return function, {}
        if isinstance(loss, functools.partial) and loss.func is function and not loss.args:
            return function, dict(loss.keywords)
    return None


def _label_weight(target: Tensor, *, classes: Tensor | None, ignored: int) -> Tensor:
    """Return what torch's mean divides by: the weights of the labels that count; the targets, given as shares."""
    if target.is_floating_point():
        return torch.tensor(target.numel() / target.shape[1], dtype=torch.float64)
    counted = target != ignored
    if classes is None:
        return counted.sum().double()
    weights = classes.to(target.device, torch.float64)
    return (weights[torch.where(counted, target, 0)] * counted).sum()
