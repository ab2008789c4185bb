"""What methods need of a workload: class labels and how many classes there are, images, or layers of batch norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from tula_core.errors import InputError
from tula_core.mitigations import MITIGATIONS, complete
from tula_core.workloads import Workload
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.trial import few_indices, read_batch

Options = Mapping[str, Mapping[str, float]]
_CLASSES = "classes"


def fitted_options(names: Sequence[str], given: Options, workload: Workload) -> dict[str, dict[str, float]]:
    """Return all options of the methods, the number of classes filled in from the width of the network's output.

    Raises
    ------
    InputError
        A method needs class labels, images or batch norm and the workload has none, or ``classes`` is given and is not
        the number of the network's outputs: softened labels have to be as wide as those.
    """
    options = complete(names, given)
    _check_norm(names, workload)
    needing = [name for name in names if MITIGATIONS[name].needs_classes or MITIGATIONS[name].needs_images]
    if not needing:
        return options
    batch = _look_at_batch(workload)
    for name in needing:
        _check_batch(name, batch)
        if batch.classes is not None and _CLASSES in options[name]:
            options[name][_CLASSES] = _classes(name, options[name][_CLASSES], batch.classes)
    return options


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """What a few samples are: the classes of their labels where they have such, whether images, and both in words."""

    classes: int | None
    are_images: bool
    found: str


def _check_batch(name: str, batch: _Batch) -> None:
    card = MITIGATIONS[name]
    if card.needs_images and not batch.are_images:
        raise InputError(
            f"mitigation: {name!r} changes images that have one label each, a batch of shape (samples, channels, "
            f"height, width), and this workload has {batch.found}. Leave the method out."
        )
    if card.needs_classes and batch.classes is None:
        raise InputError(
            f"mitigation: {name!r} needs one class number for each sample and an output of the network for each "
            f"class, and this workload has {batch.found}. Leave the method out."
        )


def _check_norm(names: Sequence[str], workload: Workload) -> None:
    needing = [name for name in names if MITIGATIONS[name].needs_batch_norm]
    if not needing:
        return
    with fixed_randomness():
        network = workload.network()
    if not any(isinstance(module, _BatchNorm) for module in network.modules()):
        raise InputError(
            f"mitigation: {needing[0]!r} acts on layers of batch norm, and the network of this workload has none. "
            "Leave the method out."
        )


def _classes(name: str, asked: float, width: int) -> float:
    if asked in (0, width):
        return float(width)
    raise InputError(
        f"mitigation_options.{name}.{_CLASSES}: {asked:g} is not the number of the network's outputs, {width}, and "
        "labels have to be as wide as those. Leave it out, or write 0, to have it found."
    )


def _look_at_batch(workload: Workload) -> _Batch:
    dataset = workload.train_set()
    indices = few_indices(len(dataset))  # type: ignore[arg-type]
    with fixed_randomness(), torch.no_grad():
        inputs, targets = read_batch(workload, dataset, indices, "train_data")
        output = workload.network()(inputs)
    found = f"{_described('inputs', inputs)}, {_described('targets', targets)}, {_described('outputs', output)}"
    labelled = isinstance(targets, Tensor) and targets.ndim <= 2
    return _Batch(
        classes=_classes_of(targets, output),
        are_images=labelled and isinstance(inputs, Tensor) and inputs.ndim == 4,
        found=found,
    )


def _classes_of(targets: Any, output: Any) -> int | None:
    if not (isinstance(targets, Tensor) and isinstance(output, Tensor)):
        return None
    numbers = targets.ndim == 1 and not targets.is_floating_point() and not targets.is_complex()
    return int(output.shape[1]) if numbers and output.ndim == 2 and output.shape[1] > 1 else None


def _described(what: str, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"{what} of type {type(value).__name__}"
    return f"{what} of {value.dtype} and shape {tuple(value.shape)}"
