"""Looking at a workload: a few samples, and the whole label set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tula_core.errors import InputError
from tula_core.workloads.imports import blame
from tula_core.workloads.types import Workload


def few_indices(length: int) -> list[int]:
    """Return four indices from the first to the last; the same one several times in a tiny data set.

    >>> few_indices(100), few_indices(1)
    ([0, 33, 66, 99], [0, 0, 0, 0])
    """
    return [index * (length - 1) // 3 for index in range(4)]


def read_items(dataset: Any, indices: Sequence[int], role: str) -> list[Any]:
    """Return the items at ``indices``.

    Raises
    ------
    InputError
        Reading one raises; the message names the index and the place.
    """
    items = []
    for index in indices:
        try:
            items.append(dataset[index])
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{role}: reading item {index} of {len(dataset)} failed: {blame(error)}. "
                "Mend the data set's __getitem__, or its __len__ if there is no such item."
            ) from error
    return items


def read_batch(workload: Workload, dataset: Any, indices: Sequence[int], role: str) -> tuple[Tensor, Tensor]:
    """Return the batch at ``indices`` as the training loop gets it.

    Raises
    ------
    InputError
        The items are no pairs, differ in shape, or do not become two tensors.
    """
    try:
        if hasattr(dataset, "get_batch"):
            batch = dataset.get_batch(list(indices))
        else:
            items = read_items(dataset, indices, role)
            check_items(items, indices, role, uniform=workload.collate is None)
            batch = (workload.collate or default_collate)(items)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{role}: making a batch of items {', '.join(map(str, indices))} failed: {blame(error)}. "
            "Mend the data set, or give the workload a collate function."
        ) from error
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        raise InputError(f"{role}: a batch is {kind(batch)}. It must be two tensors, the inputs and the targets.")
    inputs, targets = batch
    if not len(inputs) == len(targets) == len(indices):
        raise InputError(
            f"{role}: a batch of {len(indices)} items has {len(inputs)} inputs and {len(targets)} targets. "
            "Give as many of each as were asked for."
        )
    return inputs, targets


def check_items(items: Sequence[Any], indices: Sequence[int], role: str, *, uniform: bool) -> None:
    """Refuse items that are no (input, target) pair and, where ``uniform``, inputs that are no tensors of one shape."""
    shapes: dict[tuple[int, ...], int] = {}
    for index, item in zip(indices, items, strict=True):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise InputError(f"{role}: item {index} is {kind(item)}. It must be a pair (input, target).")
        if not uniform:
            continue
        if not isinstance(item[0], Tensor | np.ndarray):
            raise InputError(
                f"{role}: the input of item {index} is {kind(item[0])}. It must be a tensor; for a picture "
                "add torchvision.transforms.ToTensor()."
            )
        shapes.setdefault(tuple(item[0].shape), index)
    if len(shapes) > 1:
        listed = ", ".join(f"item {index} has {shape}" for shape, index in shapes.items())
        raise InputError(
            f"{role}: the inputs differ in shape: {listed}. Resize them in the transform, or give a collate function."
        )


def all_targets(dataset: Any, sample: Sequence[tuple[int, Any]]) -> Tensor | None:
    """Return the targets of a whole data set where they are at hand as numbers, else None.

    Taken from ``targets``, ``labels`` or the last tensor of a ``TensorDataset``, and only if they agree with
    ``sample``, pairs of index and target as read: a transform may change them.
    """
    found = getattr(dataset, "targets", None)
    found = getattr(dataset, "labels", None) if found is None else found
    if found is None and isinstance(getattr(dataset, "tensors", None), tuple | list):
        found = dataset.tensors[-1]
    try:
        targets = torch.as_tensor(found)
        agrees = len(targets) == len(dataset) and all(
            bool((targets[index] == torch.as_tensor(target)).all()) for index, target in sample
        )
    except (TypeError, ValueError, RuntimeError):
        return None
    return targets if agrees else None


def kind(value: Any) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(type(part).__name__ for part in value[:4])})"
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
