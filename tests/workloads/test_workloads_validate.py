import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tula_core.errors import InputError
from tula_core.workloads import LOSSES, METRICS, InMemoryImages, Metric, Workload, validate


class Items(Dataset):
    def __init__(self, make, length=20):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


def pair(index):
    return torch.ones(3) * index, index % 2


def workload(**changes):
    data = changes.pop("data", Items(pair))
    fields = {
        "name": "w",
        "network": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        "train_data": data,
        "eval_data": data,
        "loss": LOSSES["cross_entropy"],
        "metric": METRICS["accuracy"],
    }
    return Workload(**{**fields, **changes})


class NaNNetwork(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) / 0.0 * 0.0


class Two(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs), inputs


def frozen():
    return nn.Linear(3, 2).requires_grad_(False)


SHARED = nn.Linear(3, 2)


def test_a_sound_workload_passes_and_nothing_of_the_users_is_changed():
    data = TensorDataset(torch.randn(20, 3), torch.arange(20) % 2)
    before = copy.deepcopy(data.tensors)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    validate(workload(data=data))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert all(torch.equal(old, new) for old, new in zip(before, data.tensors, strict=True))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"network": lambda: NaNNetwork(3, 2)}, "network: NaNNetwork gave NaN or infinity"),
        ({"network": lambda: SHARED}, "gave the same Linear twice"),
        ({"network": frozen}, "Linear has no trainable parameter"),
        ({"network": lambda: Two(3, 2)}, "Two gave tuple. It must return one tensor"),
        ({"network": lambda: nn.Linear(4, 2)}, "network: Linear failed on a batch from train_data of shape .4, 3."),
        ({"network": lambda: "net"}, "the function gave str"),
        ({"network": lambda: 1 / 0}, "making it failed: ZeroDivisionError"),
        ({"network": lambda: nn.Flatten(0, 1)}, "no trainable parameter"),
        ({"loss": lambda output, target: F.cross_entropy(output, target, reduction="none")}, "loss: .* gave shape"),
        ({"loss": lambda output, target: output.mean() * float("nan")}, "gave nan for output"),
        ({"loss": lambda output, target: output.mean().detach()}, "has no gradient"),
        ({"loss": lambda output, target: torch.zeros((), requires_grad=True)}, "depends on no trainable parameter"),
        ({"loss": LOSSES["mse"]}, "loss: mse failed on output .4, 2. and target .4,."),
        ({"metric": METRICS["mse"]}, "metric: mse failed"),
        (
            {"metric": Metric(name="odd", higher_is_better=True, ceiling=None, compute=lambda o, t: (1.0, 0))},
            "metric: odd failed.*division by zero",
        ),
        ({"data": Items(lambda index: torch.ones(3))}, "item 0 is a tensor of shape .3,.. It must be a pair"),
        ({"data": Items(lambda index: (torch.ones(3 + index % 2), 0))}, "item 0 has .3,., item 19 has .4,."),
        ({"data": Items(lambda index: ("picture", 0))}, "input of item 0 is str.*ToTensor"),
        ({"data": Items(lambda index: (torch.full((3,), float("inf")), 0))}, "item 0 holds NaN or infinity"),
        ({"data": Items(pair, length=0)}, "train_data: it holds 0 items"),
        ({"data": Items(pair, length=1)}, "length says 1, but there is an item 1"),
        (
            {"data": Items(lambda index: [pair(i) for i in range(10)][index])},
            "reading item 12 of 20 failed: IndexError",
        ),
    ],
)
def test_each_fault_shows_under_its_own_name(changes, expected):
    with pytest.raises(InputError, match=expected):
        validate(workload(**changes))


@pytest.mark.parametrize(
    "reduce",
    [lambda right: (right.mean(), len(right)), lambda right: (right.mean(), 1)],
    ids=["counted", "mean of means"],
)
def test_a_metric_that_does_not_add_up_is_refused(reduce):
    metric = Metric(name="odd", higher_is_better=True, ceiling=1.0, compute=lambda o, t: reduce(1.0 + 0 * o[:, 0]))
    with pytest.raises(InputError, match="It must return the sum over the batch, not the mean"):
        validate(workload(metric=metric))


def test_a_loss_that_is_a_sum_is_refused():
    with pytest.raises(InputError, match="doubles where every sample comes twice"):
        validate(workload(loss=nn.CrossEntropyLoss(reduction="sum")))


@pytest.mark.parametrize("bad", [2, -1, -100])
def test_a_label_out_of_range_is_found_in_the_whole_set(bad):
    labels = torch.zeros(50, dtype=torch.long)
    labels[7] = bad
    with pytest.raises(
        InputError, match=f"item 7 has the label {bad}, but the network has 2 outputs, for labels 0 to 1"
    ):
        validate(workload(data=TensorDataset(torch.randn(50, 3), labels)))


def test_a_label_out_of_range_is_found_in_the_sample_where_labels_are_not_at_hand():
    with pytest.raises(InputError, match="item 12 has the label 12"):
        validate(workload(data=Items(lambda index: (torch.ones(3), index if index == 12 else 0))))


def test_a_label_out_of_range_is_found_in_images_in_memory():
    images = torch.zeros(30, 1, 2, 2, dtype=torch.uint8)
    data = InMemoryImages(images, torch.arange(30) // 10, classes=["a", "b", "c"], mean=[0.0], std=[1.0])
    with pytest.raises(InputError, match="item 20 has the label 2"):
        validate(workload(data=data, network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2))))


def test_labels_changed_when_read_are_not_judged_by_their_stored_values():
    class Shifted(Items):
        targets = [1, 2] * 10

    validate(workload(data=Shifted(lambda index: (torch.ones(3), index % 2))))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(ignore_index=7), nn.CrossEntropyLoss()])
def test_the_label_a_loss_leaves_out_is_allowed(loss):
    labels = torch.zeros(50, dtype=torch.long)
    labels[7] = loss.ignore_index
    validate(workload(data=TensorDataset(torch.randn(50, 3), labels), loss=loss))


def test_a_wrong_label_of_one_pixel_is_found():
    labels = torch.zeros(6, 4, 4, dtype=torch.long)
    labels[4, 1, 2] = 9
    data = TensorDataset(torch.randn(6, 3, 4, 4), labels)
    with pytest.raises(InputError, match="item 4 has the label 9, but the network has 2 outputs"):
        validate(workload(data=data, network=lambda: nn.Conv2d(3, 2, 1)))


def test_a_data_set_of_one_item_is_sound_in_itself():
    validate(workload(data=TensorDataset(torch.randn(1, 3), torch.zeros(1, dtype=torch.long))))


def test_a_collate_function_makes_one_shape_of_many():
    def collate(items):
        longest = max(len(x) for x, _ in items)
        return torch.stack([F.pad(x, (0, longest - len(x))) for x, _ in items]), torch.tensor([y for _, y in items])

    ragged = Items(lambda index: (torch.ones(2 + index % 2), 0))
    validate(workload(data=ragged, collate=collate))
    with pytest.raises(InputError, match="differ in shape"):
        validate(workload(data=ragged))
