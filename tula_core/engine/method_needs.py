"""What methods need of a workload: class labels and how many classes there are, or layers of batch norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
_OF_IMAGES = frozenset({"mixup", "cutmix"})


def fitted_options(names: Sequence[str], given: Options, workload: Workload) -> dict[str, dict[str, float]]:
    """Return all options of the methods, the number of classes filled in from the width of the network's output.

    Raises
    ------
    InputError
        A method needs class labels or batch norm and the workload has none, or ``classes`` is given and is not the
        number of the network's outputs: softened labels have to be as wide as those.
    """
    options = complete(names, given)
    _check_norm(names, workload)
    classified = [name for name in names if MITIGATIONS[name].needs_classes]
    if not classified:
        return options
    width, is_images, found = _output_width(workload)
    for name in classified:
        if name in _OF_IMAGES and not is_images:
            raise InputError(
                f"mitigation: {name!r} mixes images, a batch of shape (samples, channels, height, width), and this "
                f"workload has {found}. Leave the method out."
            )
        if width is None:
            raise InputError(
                f"mitigation: {name!r} needs one class number for each sample and an output of the network for each "
                f"class, and this workload has {found}. Leave the method out."
            )
        if _CLASSES in options[name]:
            options[name][_CLASSES] = _classes(name, options[name][_CLASSES], width)
    return options


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


def _output_width(workload: Workload) -> tuple[int | None, bool, str]:
    """Return the number of classes, None where there are none; whether inputs are images; and what was found."""
    dataset = workload.train_set()
    indices = few_indices(len(dataset))  # type: ignore[arg-type]
    with fixed_randomness(), torch.no_grad():
        inputs, targets = read_batch(workload, dataset, indices, "train_data")
        output = workload.network()(inputs)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    found = (
        f"inputs of shape {tuple(inputs.shape)}, targets of {targets.dtype} and shape {tuple(targets.shape)}, outputs "
        f"of shape {shape}"
    )
    numbers = targets.ndim == 1 and not targets.is_floating_point() and not targets.is_complex()
    if numbers and isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1:
        return int(output.shape[1]), inputs.ndim == 4, found
    return None, inputs.ndim == 4, found
