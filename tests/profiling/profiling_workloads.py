"""Tiny workloads that the measuring workers import by path; some of them fail on purpose."""

import os
import signal
import time
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tula_core.job import Recipe
from tula_core.workloads import METRICS, Workload

FAILS_FROM = 64
SAMPLES = 512


class Blobs(Dataset):
    """Two noisy blobs; one label may be wrong."""

    def __init__(self, samples, wrong=None):
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.arange(samples) % 2
        self.inputs = torch.randn(samples, 4, generator=generator) + 2.0 * self.labels[:, None]
        self.wrong = wrong

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], 99 if index == self.wrong else int(self.labels[index])


class Tiny(nn.Module):
    """A small perceptron that can do something else at large training batches."""

    def __init__(self, at_large=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.at_large = at_large

    def forward(self, inputs):
        if self.training and len(inputs) >= FAILS_FROM and self.at_large is not None:
            self.at_large()
        return self.layers(inputs)


def workload(network=Tiny, wrong=None, **recipe):
    given = {"learning_rate": 0.1, "batch_size": 32, "epochs": 8} | recipe
    data = Blobs(SAMPLES)
    plain = TensorDataset(data.inputs, data.labels)
    return Workload(
        name="blobs",
        network=network,
        train_data=plain if wrong is None else Blobs(SAMPLES, wrong),
        eval_data=plain,
        loss=nn.functional.cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(**given),
    )


def tiny():
    return workload()


def out_of_memory():
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return workload(lambda: Tiny(fail))


def killed():
    return workload(lambda: Tiny(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def never_fits():
    class Full(Tiny):
        def forward(self, inputs):
            if self.training:
                raise MemoryError
            return super().forward(inputs)

    return workload(Full)


def wrong_label():
    return workload(wrong=5)


def diverging():
    return workload(learning_rate=1e30)


def slow():
    class Slow(Tiny):
        def forward(self, inputs):
            time.sleep(0.002 * len(inputs))
            return super().forward(inputs)

    return workload(Slow)


def dies_while_loading():
    os.kill(os.getpid(), signal.SIGKILL)


def only_fp32():
    class Refusing(Tiny):
        def forward(self, inputs):
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("this layer knows no sixteen bits")
            return super().forward(inputs)

    return workload(Refusing)


def learns_nothing():
    class Deaf(Tiny):
        def forward(self, inputs):
            return 0.0 * self.layers(inputs) + torch.linspace(0.0, 1.0, 2)

    return workload(Deaf)


def learns_nothing_unstated():
    return replace(learns_nothing(), recipe=Recipe(batch_size=32, epochs=16))
