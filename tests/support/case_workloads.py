"""Workloads that go wrong in the ways that public reports tell of; each forward pass can be written down."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from tiny_workloads import ACCURACY, blobs
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tula_core.job import Recipe
from tula_core.workloads import Workload

CAPACITY = 70.0  # of the fake allocator, in training samples at the first step


def note(**entry: object) -> None:
    """Append a line to this process's file under CASES_LOG, where that is set."""
    folder = os.environ.get("CASES_LOG")
    if folder:
        launch = Path(sys.argv[-1]).parent.name
        line = {"rank": int(os.environ.get("RANK", "0")), "launch": launch, "run": os.environ.get("CASES_RUN"), **entry}
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def noted(folder: Path) -> list[dict[str, object]]:
    """Return every line of every process, each process's in order."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


class Net(nn.Module):
    """Two layers; ``before`` is called with network and inputs of each pass that a worker makes."""

    def __init__(self, before: Callable[[Net, Tensor], None] | None = None, features: int = 6, norm: bool = False):
        super().__init__()
        middle = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.layers = nn.Sequential(nn.Linear(features, 16), middle, nn.Tanh(), nn.Linear(16, 3))
        self.before = before

    def forward(self, inputs: Tensor) -> Tensor:
        if self.before is not None and "RANK" in os.environ:
            self.before(self, inputs)
        return self.layers(inputs)


def workload(network: Callable[[], nn.Module] = Net, samples: int = 1000, **recipe: object) -> Workload:
    fields = {"learning_rate": 0.1, "batch_size": 16, "epochs": 2, "weight_decay": 0.0} | recipe
    return Workload(
        name="case",
        network=network,
        train_data=blobs(samples, 1),
        eval_data=blobs(500, 2),
        loss=nn.functional.cross_entropy,
        metric=ACCURACY,
        recipe=Recipe(**fields),
    )


def log_pass(network: Net, inputs: Tensor) -> None:
    note(training=network.training, size=len(inputs))


class Allocator:
    """Memory that grows by 30 % with the second step, as optimizer state does, and is lost once it has run out."""

    steps = 0
    lost = False

    def __call__(self, network: Net, inputs: Tensor) -> None:
        log_pass(network, inputs)
        if network.training:
            self.steps += 1
        size = len(inputs) * ((1.3 if self.steps > 1 else 1.0) if network.training else 1.1)
        if size > CAPACITY or (self.lost and network.training):
            self.lost = self.lost or network.training
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} units")


def fake_allocator() -> Workload:
    allocator = Allocator()
    return workload(lambda: Net(allocator), optimizer="adam", learning_rate=0.01)


def _one_rank_runs_out(network: Net, inputs: Tensor) -> None:
    log_pass(network, inputs)
    if network.training and len(inputs) >= 32 and (os.environ["WORLD_SIZE"], os.environ["RANK"]) == ("2", "1"):
        network.layers[0].weight.register_hook(_run_out)


def _run_out(gradient: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def one_rank_runs_out() -> Workload:
    """Rank 1 of two runs out of memory in the backward pass, from 32 samples on."""
    return workload(lambda: Net(_one_rank_runs_out))


MEBIBYTE = 2**20
HELD_BYTES, FREE_BYTES = 2 * MEBIBYTE, 200 * MEBIBYTE  # of a sample; of the machine
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # pages that are the process's from the start


class _Hold(torch.autograd.Function):
    """Keeps two mebibytes for each sample until the backward pass."""

    @staticmethod
    def forward(context, output: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        # A mapping of its own: in the heap, what is kept beside a freed block decides whether the next one fits there.
        context.held = mmap.mmap(-1, len(output) * HELD_BYTES, flags=_PRIVATE)
        return output.clone()

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        context.held.close()
        return gradient


class Hungry(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        output = super().forward(inputs)
        return _Hold.apply(output) if self.training else output


def little_memory() -> Workload:
    """A machine with 200 MiB free and a network that needs two for each sample."""
    import tula_core.profiling.rig

    tula_core.profiling.rig.free_memory_bytes = lambda: FREE_BYTES
    return workload(lambda: Hungry(log_pass))


WIDE_SAMPLES, WIDE_FEATURES = 3_400_000, 62


def _sleep(network: Net, inputs: Tensor) -> None:
    note(training=network.training, size=len(inputs), at_s=time.time())
    time.sleep((0.1 if network.training else 0.03) * len(inputs))


def wide_and_slow() -> Workload:
    """Millions of rows in memory and a network that takes a tenth of a second for each."""
    rows = TensorDataset(torch.zeros(WIDE_SAMPLES, WIDE_FEATURES), torch.arange(WIDE_SAMPLES) % 3)
    made = workload(lambda: Net(_sleep, WIDE_FEATURES), batch_size=32)
    test = TensorDataset(torch.zeros(500, WIDE_FEATURES), torch.arange(500) % 3)
    return replace(made, train_data=rows, eval_data=test)


class Broken(Dataset):
    """One item, which no sample of a few meets, cannot be read."""

    def __init__(self, samples: int) -> None:
        self.data = blobs(samples, 1)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 5:
            raise KeyError("no label for image 5.png")
        return self.data[index]


def broken_item() -> Workload:
    return replace(workload(samples=64), train_data=Broken(64))


# Of the learning rate, schedules and accumulation.


def plain() -> Workload:
    return workload()


def plain_240() -> Workload:
    return workload(samples=240, batch_size=24, schedule="cosine")


def small_64() -> Workload:
    return workload(samples=64, schedule="linear", epochs=1)


def windows_40() -> Workload:
    return workload(samples=40, epochs=1)


def windows_80() -> Workload:
    return workload(samples=80, epochs=1)


def odd_258() -> Workload:
    """Two samples more than whole batches, for a norm that needs two on each process."""
    return workload(lambda: Net(norm=True), samples=258, batch_size=64, epochs=1)


def odd_257() -> Workload:
    """A training set that leaves one sample at every usual batch size, and a norm that cannot use one."""
    return workload(lambda: Net(norm=True), samples=257, batch_size=64, epochs=1)


def large_1024() -> Workload:
    return workload(samples=1024, batch_size=256, epochs=1)


class Overflowing(Net):
    """The gradients of its first three updates are infinite."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].weight.register_hook(self._spoil)

    def _spoil(self, gradient: Tensor) -> Tensor:
        self.passes += 1
        return gradient * float("inf") if self.passes <= 3 else gradient


def overflowing() -> Workload:
    return workload(Overflowing, samples=160, epochs=1, precision="fp16", schedule="linear", learning_rate=0.01)


class OverflowingOnRankOne(Overflowing):
    """The gradients of its sixth pass are infinite on the second of two ranks alone."""

    def _spoil(self, gradient: Tensor) -> Tensor:
        self.passes += 1
        spoilt = self.passes == 6 and os.environ.get("RANK") == "1"
        return gradient * float("inf") if spoilt else gradient


def one_rank_overflows() -> Workload:
    return workload(OverflowingOnRankOne, samples=160, epochs=2, precision="fp16", learning_rate=0.01)


class Line(nn.Module):
    """A least-squares problem whose gradient descent diverges from a learning rate of 0.1 on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -1.0, 0.5]))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.abs().clamp(0, 0) + 1)[:, :3] * self.weight


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return 10.0 * output.square().sum(1).mean()


def steep() -> Workload:
    """Stable below a rate of 2/20, at 0.02 for 16 samples; the linear rule at 96 gives 0.12."""
    made = workload(Line, samples=960, learning_rate=0.02, batch_size=16, momentum=0.0, epochs=4, schedule="constant")
    return replace(made, loss=_squares)


class Numbered(Dataset):
    """Items whose first feature is their number."""

    def __init__(self, samples: int, by_class: bool = False) -> None:
        self.samples = samples
        self.inputs, self.labels = blobs(samples, 3).tensors
        if by_class:
            order = self.labels.argsort(stable=True)
            self.inputs, self.labels = self.inputs[order], self.labels[order]
        self.targets = self.labels

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[index].clone()
        inputs[0] = index / 100
        return inputs, self.labels[index]


def _log_numbers(network: Net, inputs: Tensor) -> None:
    if network.training:
        note(numbers=[round(100 * float(value)) for value in inputs[:, 0]])


def numbered_64() -> Workload:
    return replace(workload(lambda: Net(_log_numbers), samples=64, epochs=2), train_data=Numbered(64))


def sorted_by_class() -> Workload:
    return replace(workload(samples=600, batch_size=32), train_data=Numbered(600, by_class=True))


def shuffled() -> Workload:
    data = Numbered(600, by_class=True)
    order = torch.tensor(np.random.default_rng(0).permutation(600))
    data.inputs, data.labels = data.inputs[order], data.labels[order]
    data.targets = data.labels
    return replace(workload(samples=600, batch_size=32), train_data=data)


class Frozen(nn.Module):
    """A network with a part that stays in evaluation mode, and with dropout."""

    modes: ClassVar[list[bool]] = []  # of that part, at each pass

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16).eval()
        self.rest = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        note(training=self.training, size=len(inputs))
        self.modes.append(self.norm.training)
        return self.rest(torch.relu(self.norm(self.first(inputs))))


def frozen_part() -> Workload:
    return workload(Frozen, samples=256, batch_size=32)


UNITS, NETWORK_UNITS = 100, 30  # of a fake accelerator's memory: all, and those of a network with all it trains with


class Stateful(Net):
    """Every network that is alive takes thirty units of memory, and a training sample one."""

    alive: ClassVar[weakref.WeakSet[nn.Module]] = weakref.WeakSet()

    def __init__(self) -> None:
        super().__init__(log_pass)
        self.alive.add(self)

    def forward(self, inputs: Tensor) -> Tensor:
        output = super().forward(inputs)
        if "RANK" in os.environ and self.training and NETWORK_UNITS * len(self.alive) + len(inputs) > UNITS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return output


def stateful() -> Workload:
    return workload(Stateful)


def _pilots_run_out(network: Net, inputs: Tensor) -> None:
    if network.training and any(parameter.abs().max() > 4 for parameter in network.parameters()):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def pilots_run_out() -> Workload:
    """Memory runs out where the weights have moved far: in pilots alone, since a sweep's steps leave them alone."""
    return workload(lambda: Net(_pilots_run_out), learning_rate=100.0)


def little_memory_large_batch() -> Workload:
    """As `little_memory`, with a recipe's batch of a thousand: a quarter of it needs more than twice what is free."""
    little_memory()
    return workload(lambda: Hungry(log_pass), samples=2000, batch_size=1024)
