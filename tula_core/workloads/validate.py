"""Trying a workload on a few samples before anything is measured, so that its faults show under their own name."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tula_core.errors import InputError
from tula_core.workloads.imports import blame
from tula_core.workloads.measures import cross_entropy
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.sizing import length_of
from tula_core.workloads.trial import all_targets, few_indices, read_batch
from tula_core.workloads.types import Workload


def validate(workload: Workload) -> None:
    """Run one forward and backward pass and the metric on a few samples, on the CPU.

    Works on a network of its own; the generators of torch, numpy and Python get their states back.

    Raises
    ------
    InputError
        The data set's length is wrong, its items are no (input, target) pairs of one shape, a label has no output, the
        network or the loss fails or is not finite, there is nothing to train, or the metric fails.
    """
    with fixed_randomness():
        network = _network(workload)
        for role, dataset in (("train_data", workload.train_set()), ("eval_data", workload.eval_set())):
            _check_length(dataset, role)
            indices = few_indices(len(dataset))  # type: ignore[arg-type]
            inputs, targets = read_batch(workload, dataset, indices, role)
            _check_finite_inputs(inputs, indices, role)
            output = _output(network, inputs, role)
            _check_labels(workload, dataset, output, list(zip(indices, targets, strict=True)), role)
            if role == "train_data":
                _check_loss(workload, network, output, targets)
                network.eval()
                output = _output(network, inputs, role)
            _check_metric(workload, output, targets)


def _network(workload: Workload) -> nn.Module:
    try:
        network, other = workload.network(), workload.network()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"network: making it failed: {blame(error)}. Mend that line.") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"network: the function gave {type(network).__name__}. It must return a torch.nn.Module.")
    if network is other:
        raise InputError(
            f"network: the function gave the same {type(network).__name__} twice. It must make a new one at each call, "
            "so that every measurement starts from untrained weights."
        )
    if not network.training:
        raise InputError(
            f"network: {type(network).__name__} comes in evaluation mode, in which dropout and batch norm do not "
            "train. Call train() on it in the function that makes it; parts of it may stay in evaluation mode."
        )
    if not any(parameter.requires_grad and parameter.numel() for parameter in network.parameters()):
        raise InputError(
            f"network: {type(network).__name__} has no trainable parameter. Set requires_grad on those to train."
        )
    return network


def _check_length(dataset: Any, role: str) -> None:
    length = length_of(dataset)
    if not length:
        raise InputError(f"{role}: it holds {length} items. Give a data set with items.")
    if length > 1:
        return
    # A length of one is a common slip. Larger ones are believed, with a note: a data set may be cut on purpose.
    try:
        dataset[1]
    except Exception:
        return
    raise InputError(f"{role}: its length says 1, but there is an item 1 too. Mend __len__.")


def _check_finite_inputs(inputs: Tensor, indices: Sequence[int], role: str) -> None:
    for index, item in zip(indices, inputs, strict=True):
        if item.is_floating_point() and not bool(item.isfinite().all()):
            raise InputError(
                f"{role}: the input of item {index} holds NaN or infinity. Mend the data or its transform."
            )


def _output(network: nn.Module, inputs: Tensor, role: str) -> Tensor:
    name = type(network).__name__
    shown = f"{role} of shape {tuple(inputs.shape)}, {inputs.dtype}"
    try:
        output = network(inputs)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"network: {name} failed on a batch from {shown}: {blame(error)}. Let network and data set fit each other."
        ) from error
    if not isinstance(output, Tensor):
        raise InputError(f"network: {name} gave {type(output).__name__}. It must return one tensor.")
    if not output.shape or len(output) != len(inputs):
        raise InputError(
            f"network: {name} gave shape {tuple(output.shape)} for a batch from {shown}. "
            "The first axis of its output must be the batch."
        )
    if not bool(output.detach().isfinite().all()):
        raise InputError(
            f"network: {name} gave NaN or infinity for finite inputs, with untrained weights. "
            "Look for a division by zero, a logarithm, or weights that are not initialised."
        )
    return output


def _check_labels(
    workload: Workload, dataset: Any, output: Tensor, sample: Sequence[tuple[int, Tensor]], role: str
) -> None:
    ignored = _ignored_label(workload.loss)
    if ignored is None or output.ndim < 2 or any(target.is_floating_point() for _, target in sample):
        return
    known = all_targets(dataset, sample)
    labels = torch.stack([target for _, target in sample]) if known is None else known
    wrong = ((labels < 0) | (labels >= output.shape[1])) & (labels != ignored)
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(dim=1).nonzero()[0]) if wrong.ndim > 1 else int(wrong.nonzero()[0])
        index = sample[row][0] if known is None else row
        raise InputError(
            f"{role}: item {index} has the label {int(labels[row][wrong[row]].flatten()[0])}, but the network has "
            f"{output.shape[1]} outputs, for labels 0 to {output.shape[1] - 1}. "
            "Mend the label, or give the network more outputs."
        )


def _ignored_label(loss: Any) -> float | None:
    """Return the label a cross-entropy leaves out, NaN (equal to none) where there is none; None for other losses."""
    if isinstance(loss, nn.CrossEntropyLoss):
        return float(loss.ignore_index)
    if isinstance(loss, functools.partial) and loss.func is F.cross_entropy:
        return float(loss.keywords.get("ignore_index", -100))
    # The named loss leaves out none: -100 would silently train on fewer samples than are counted.
    return math.nan if loss in (cross_entropy, F.cross_entropy) else None


def _check_loss(workload: Workload, network: nn.Module, output: Tensor, targets: Tensor) -> None:
    name = getattr(workload.loss, "__name__", type(workload.loss).__name__)
    shapes = f"output {tuple(output.shape)} and target {tuple(targets.shape)}, {targets.dtype}"
    try:
        loss = workload.loss(output, targets)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"loss: {name} failed on {shapes}: {blame(error)}. Choose a loss that fits the network and the targets."
        ) from error
    if not isinstance(loss, Tensor) or loss.ndim:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"loss: {name} gave {found} for {shapes}. It must return a scalar, the mean over the batch.")
    if not bool(loss.detach().isfinite()):
        raise InputError(f"loss: {name} gave {float(loss.detach())} for {shapes}, all finite. Mend the loss.")
    if _is_sum(workload, float(loss.detach()), output.detach(), targets):
        raise InputError(
            f"loss: {name} doubles where every sample comes twice, as a sum does. Return the mean over the batch: the "
            "gradient of a sum grows with the batch, beside the learning rate that already does."
        )
    if not loss.requires_grad:
        raise InputError(f"loss: {name} has no gradient. Compute it from the output by torch, without detach or item.")
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except (Exception, SystemExit) as error:
        raise InputError(f"loss: the backward pass failed: {blame(error)}. Mend the loss or the network.") from error
    if all(parameter.grad is None for parameter in network.parameters()):
        raise InputError(
            f"loss: {name} depends on no trainable parameter of the network. Mend the loss or the network."
        )


def _is_sum(workload: Workload, loss: float, output: Tensor, targets: Tensor) -> bool:
    """Return whether a loss doubles where every sample comes twice."""
    try:
        twice = float(workload.loss(torch.cat([output, output]), torch.cat([targets, targets])))
    except Exception:  # it may take this one size alone, and then nothing can be said
        return False
    return abs(twice - 2 * loss) < 1e-3 * abs(twice)


def _check_metric(workload: Workload, output: Tensor, targets: Tensor) -> None:
    name = workload.metric.name
    shapes = f"output {tuple(output.shape)} and target {tuple(targets.shape)}, {targets.dtype}"
    try:
        total, count = workload.metric.compute(output.detach(), targets)
        twice, twice_count = workload.metric.compute(
            torch.cat([output, output]).detach(), torch.cat([targets, targets])
        )
        mean = float(total) / int(count)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"metric: {name} failed on {shapes}: {blame(error)}. It must return the sum and the count of the batch."
        ) from error
    if not math.isfinite(mean):
        raise InputError(f"metric: {name} gave {mean} for {shapes}. Mend the metric.")
    if int(twice_count) != 2 * int(count) or abs(float(twice) - 2 * float(total)) > 1e-3 * abs(float(total)):
        raise InputError(
            f"metric: {name} gave {float(total):g} and {int(count)}, and {float(twice):g} and {int(twice_count)} where "
            "every sample comes twice. It must return the sum over the batch, not the mean, and the count."
        )
