"""Measurements outlive what they were made of: elsewhere a cache looks at names, or at a sample of a few items.

Here the key changes with whatever loss, network and data hold or do, and stays where nothing changed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from case_workloads import Net, workload
from tiny_workloads import blobs
from torch import Tensor, nn
from torch.utils.data import Dataset

from tula_core.job import Job
from tula_core.workloads import Workload
from tula_core.workloads.describe import describe

JOB = Job(workload="case_workloads:plain")


def key(**fields: Any) -> str:
    made: Workload = dataclasses.replace(workload(), **fields)
    return describe(made, JOB).code_fingerprint


def smoothed(by: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: nn.functional.cross_entropy(output, target, label_smoothing=by)


class Focal:
    """A loss of one's own, with a setting."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        own = nn.functional.cross_entropy(output, target, reduction="none")
        return ((1 - (-own).exp()) ** self.gamma * own).mean()


LOSSES: list[tuple[Callable[[Any], Any], Any, Any]] = [
    (lambda by: nn.CrossEntropyLoss(label_smoothing=by), 0.0, 0.5),
    (lambda by: nn.CrossEntropyLoss(weight=torch.tensor(by)), [1.0, 1.0, 1.0], [1.0, 50.0, 1.0]),
    (lambda by: functools.partial(nn.functional.cross_entropy, label_smoothing=by), 0.0, 0.5),
    (smoothed, 0.0, 0.5),
    (Focal, 1.0, 2.0),
]


@pytest.mark.parametrize(("make", "one", "other"), LOSSES, ids=["argument", "buffer", "partial", "closure", "object"])
def test_another_setting_of_a_loss_is_another_profile(make: Callable[[Any], Any], one: Any, other: Any) -> None:
    """Its name and its source are the same."""
    assert key(loss=make(one)) == key(loss=make(one))
    assert key(loss=make(one)) != key(loss=make(other))


class Repeats(Net):
    """As deep as something outside of it says."""

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(Depth.depth):
            output = super().forward(inputs)
        return output


class Depth:
    depth = 1


def test_a_network_that_does_more_work_is_another_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text and its weights are the same; a variable of the environment may say how often it repeats itself."""
    once = key(network=Repeats)
    assert key(network=Repeats) == once
    monkeypatch.setattr(Depth, "depth", 50)
    assert key(network=Repeats) != once


def test_weights_that_were_trained_elsewhere_are_part_of_the_key() -> None:
    """Pilots find other curves from them."""

    def trained(by: float) -> Net:
        made = Net()
        with torch.no_grad():
            made.layers[0].weight.fill_(by)
        return made

    assert key(network=lambda: trained(0.1)) == key(network=lambda: trained(0.1))
    assert key(network=lambda: trained(0.1)) != key(network=lambda: trained(0.2))


class Items(Dataset[Any]):
    """Items without a list of their targets."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.labels_of_items = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels_of_items[index]


@pytest.mark.parametrize("part", ["images", "labels"])
def test_items_that_changed_between_the_first_few_are_seen(part: str) -> None:
    """Four of a thousand are as they were, and no list of targets is at hand."""
    inputs, labels = blobs(1000, 1).tensors
    other = {"images": (inputs + 5, labels), "labels": (inputs, (labels + 1) % 3)}[part]
    for mended, before in zip(other, (inputs, labels), strict=True):
        mended[[0, 333, 666, 999]] = before[[0, 333, 666, 999]]
    assert key(train_data=Items(inputs, labels)) != key(train_data=Items(*other))


def test_the_setting_of_a_transform_is_part_of_the_key() -> None:
    """Its text says nothing of it."""

    def data(scale: float) -> Items:
        made = Items(*blobs(1000, 1).tensors)
        made.transform = functools.partial(Focal, scale)  # type: ignore[attr-defined]
        return made

    assert key(train_data=data(1.0)) == key(train_data=data(1.0))
    assert key(train_data=data(1.0)) != key(train_data=data(2.0))
