"""A workload from a network and a data set, each by name, path or import path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tula_core.errors import InputError, nearest
from tula_core.job import Job
from tula_core.workloads.datasets import DATASETS
from tula_core.workloads.folders import TORCHVISION, image_folder, simplified, split, torchvision_dataset
from tula_core.workloads.imports import call, import_object, is_import_path
from tula_core.workloads.measures import LOSSES, METRICS
from tula_core.workloads.networks import network_maker, wants_shape
from tula_core.workloads.sizing import as_sized
from tula_core.workloads.types import Workload

Opener = Callable[[], Dataset[Any]]


def named_workload(job: Job, search_path: Sequence[str] = ()) -> Workload:
    """Return the workload of a job's ``network`` and ``dataset``.

    The loss is cross-entropy and the metric accuracy where the job names none; where it names the squared error as
    loss, the metric is that too. A network by name gets as many outputs as the data set has classes, or values.

    Raises
    ------
    InputError
        A name is unknown, an import fails, or the number of outputs cannot be told.
    """
    assert job.network is not None and job.dataset is not None
    opener, evaluate, notes = _openers(job.dataset, search_path)
    metric = "mse" if job.loss == "mse" else "accuracy"

    @cache
    def train() -> Dataset[Any]:
        # Sized here already: the network asks for a sample too, and a stream may be readable only once.
        return as_sized(opener(), job.samples, role="train_data", seed=job.seed)

    return Workload(
        name=job.title,
        network=_network(job, train, search_path),
        train_data=train,
        eval_data=cache(evaluate),
        loss=LOSSES["cross_entropy"],
        metric=METRICS[metric],
        notes=notes,
    )


def _openers(name: str, search_path: Sequence[str]) -> tuple[Opener, Opener, tuple[str, ...]]:
    own = next((known for known in DATASETS if simplified(known) == simplified(name)), None)
    if own is not None:
        make = DATASETS[own].make
        return partial(make, True), partial(make, False), ()
    if is_import_path(name):
        return _user_data(name, search_path)
    if os.sep in name or name.startswith((".", "~")) or Path(name).is_dir():
        return image_folder(Path(name).expanduser().resolve())
    if not any(simplified(known) == simplified(name) for known in TORCHVISION):
        raise InputError(
            f"dataset: {name!r} is unknown. {nearest(name, [*DATASETS, *TORCHVISION])} "
            f"There is no folder of that name in {str(Path.cwd())!r} either. Give the path of an image folder, or "
            "package.module:function."
        )
    return torchvision_dataset(name)


def _user_data(name: str, search_path: Sequence[str]) -> tuple[Opener, Opener, tuple[str, ...]]:
    found = import_object("dataset", name, search_path)

    @cache
    def made() -> Any:
        data = call("dataset", found) if callable(found) else found
        if isinstance(data, tuple) and len(data) != 2:
            raise InputError(f"dataset: {name} gave {len(data)} data sets. Give two, to train and to evaluate, or one.")
        if not isinstance(data, tuple) and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InputError(
                f"dataset: {name} gave {type(data).__name__}, which cannot be split. "
                "Give two data sets, to train and to evaluate."
            )
        return data

    def opener(train: bool) -> Dataset[Any]:
        data = made()
        if isinstance(data, tuple):
            return data[0 if train else 1]  # type: ignore[no-any-return]
        return split(data, train)

    # One data set or two is known only once the function is called, and what the plan assumes must be said before.
    notes = () if isinstance(made(), tuple) else (f"A tenth of {name}, the same each time, is used to evaluate.",)
    return partial(opener, True), partial(opener, False), notes


def _network(job: Job, train: Opener, search_path: Sequence[str]) -> Callable[[], nn.Module]:
    assert job.network is not None
    if not is_import_path(job.network):
        make: Callable[..., Any] = network_maker(job.network)
    else:
        make = import_object("network", job.network, search_path)
        if not callable(make) or isinstance(make, nn.Module):
            raise InputError(
                f"network: {job.network} is {type(make).__name__}. Give a function that returns a new torch.nn.Module."
            )
        if not wants_shape(make):
            return partial(call, "network", make, job)
    shape_and_outputs = cache(partial(_shape_and_outputs, job, train))

    def network() -> nn.Module:
        made: nn.Module = make(*shape_and_outputs())
        return made

    return network


def _shape_and_outputs(job: Job, train: Opener) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of outputs that its targets call for."""
    dataset: Any = train()
    image, target = dataset[0]
    target = torch.as_tensor(target)
    if job.loss in ("mse", "bce_with_logits") or target.is_floating_point():
        return tuple(image.shape), max(1, target.numel())
    for attribute in ("classes", "categories"):
        if hasattr(dataset, attribute):
            return tuple(image.shape), len(getattr(dataset, attribute))
    for attribute in ("targets", "labels"):
        if hasattr(dataset, attribute):
            return tuple(image.shape), int(torch.as_tensor(getattr(dataset, attribute)).max()) + 1
    raise InputError(
        f"dataset: {job.dataset} does not say how many classes it has. Give it an attribute classes, "
        "or give the network as package.module:function."
    )
