"""Workloads that train in well under a second, as a user would write them: loaded by import path."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tula_core.job import Recipe, Target
from tula_core.workloads import Workload
from tula_core.workloads.measures import cross_entropy
from tula_core.workloads.types import Metric


def correct(output: Tensor, target: Tensor) -> tuple[float, int]:
    return float((output.argmax(1) == target).sum()), len(target)


ACCURACY = Metric(name="accuracy", higher_is_better=True, ceiling=1.0, compute=correct)


def blobs(samples: int, seed: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    centres = torch.eye(3, 6, dtype=dtype) * 2
    return TensorDataset(centres[labels] + torch.randn(samples, 6, generator=generator, dtype=dtype), labels)


class Mlp(nn.Module):
    """Two layers; ``hook`` is called with the inputs of each training forward pass."""

    def __init__(
        self, dtype: torch.dtype = torch.float32, hook: Callable[[Tensor], None] | None = None, p: float = 0.0
    ):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16, dtype=dtype), nn.Tanh(), nn.Dropout(p), nn.Linear(16, 3, dtype=dtype)
        )
        self.hook = hook

    def forward(self, inputs: Tensor) -> Tensor:
        if self.hook is not None and self.training:
            self.hook(inputs)
        return self.layers(inputs)


def workload(
    network: Callable[[], nn.Module] = Mlp, samples: int = 203, dtype: torch.dtype = torch.float32, **recipe: object
) -> Workload:
    fields = {"learning_rate": 0.1, "batch_size": 16, "epochs": 3, "weight_decay": 0.0} | recipe
    return Workload(
        name="tiny",
        network=network,
        train_data=blobs(samples, 1, dtype),
        eval_data=blobs(101, 2, dtype),
        loss=nn.functional.cross_entropy,
        metric=ACCURACY,
        recipe=Recipe(**fields),
    )


def plain() -> Workload:
    return workload()


def double_precision() -> Workload:
    return workload(lambda: Mlp(torch.float64), dtype=torch.float64)


def half_precision() -> Workload:
    """The loss scaler begins so high that the first steps overflow and are skipped."""
    from dataclasses import replace

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return 100 * nn.functional.cross_entropy(output, target)

    return replace(workload(precision="fp16", schedule="linear", learning_rate=0.001), loss=loss)


def with_target() -> Workload:
    from dataclasses import replace

    return replace(workload(epochs=20), target=Target(value=0.75))


def _slow_step(inputs: Tensor) -> None:
    time.sleep(0.02)


def slow() -> Workload:
    """Dropout makes the weights depend on the random state of every step."""
    return workload(lambda: Mlp(hook=_slow_step, p=0.3), epochs=12)


def diverging() -> Workload:
    return workload(learning_rate=3e4, schedule="constant", epochs=2)


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, nn.functional.one_hot(target, 3).to(output.dtype))


def unstable_at_a_large_batch() -> Workload:
    """Least squares: stable at the recipe's rate, beyond the edge at eight times, and still at four times the rate."""
    made = workload(lambda: nn.Linear(6, 3), learning_rate=0.4, momentum=0.0, schedule="constant", epochs=6)
    return replace(made, loss=_squared)


def hopeless() -> Workload:
    return workload(learning_rate=1e30, schedule="constant", epochs=2)


class Poisoned(Mlp):
    """The thirteenth step, the last of an epoch, has a finite loss and a gradient that is not."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        output = super().forward(inputs)
        if self.training:
            self.calls += 1
            if self.calls == 13:
                return output + torch.sqrt(0 * output.sum())
        return output


def poisoned() -> Workload:
    return workload(Poisoned)


def _refuse_large(inputs: Tensor) -> None:
    if len(inputs) >= 64:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")


def memory_limited() -> Workload:
    return workload(lambda: Mlp(hook=_refuse_large), samples=2000)


def _die_when_large(inputs: Tensor) -> None:
    if len(inputs) >= 64:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_when_large() -> Workload:
    return workload(lambda: Mlp(hook=_die_when_large), samples=2000)


def images() -> Workload:
    data = [TensorDataset(part.tensors[0].view(-1, 1, 2, 3), part.tensors[1]) for part in (blobs(48, 1), blobs(24, 2))]
    network = lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3))  # noqa: E731
    return replace(workload(epochs=1), network=network, train_data=data[0], eval_data=data[1], loss=cross_entropy)
