"""Networks whose memory is known or depends on their samples, and a worker that reads it."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import asdict, replace
from typing import Any, ClassVar

import tiny_workloads
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tula_core.engine.context import WorkerContext
from tula_core.job import Recipe
from tula_core.profiling.memory import MemoryPhases, sample_content
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.profiling.timing import SizeRun, first_look
from tula_core.workloads import Workload

SIDE = 24


class SmallConv(nn.Module):
    """Two convolutions; about half a megabyte of activations a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.last = nn.Linear(32, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.layers(inputs).mean((2, 3)))


class Mark:
    """Lives as long as the graph of one forward pass; ``alive`` are those of all passes so far."""

    alive: ClassVar[weakref.WeakSet[Mark]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)


class _Marking(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, output: Tensor) -> Tensor:
        context.mark = Mark()
        return output.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Marked(SmallConv):
    """Ends in an operation whose result is kept for its own gradient, as that of every sigmoid or softmax is."""

    most_alive = 0  # at the beginning of a pass

    def forward(self, inputs: Tensor) -> Tensor:
        Marked.most_alive = max(Marked.most_alive, len(Mark.alive))
        return _Marking.apply(super().forward(inputs)).tanh()


class Crowded(SmallConv):
    """Works ten times as much on samples that hold something."""

    def forward(self, inputs: Tensor) -> Tensor:
        crowd = inputs[:, 0, 0, 0] > 5
        extra = [super(Crowded, self).forward(inputs[crowd]).mean() for _ in range(9) if bool(crowd.any())]
        return super().forward(inputs) + (sum(extra) if extra else 0.0)


def workload(network: type[nn.Module], samples: int, crowded: int = 0) -> Workload:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(samples, 3, SIDE, SIDE, generator=generator)
    inputs[:, 0, 0, 0] = 0
    inputs[torch.randperm(samples, generator=generator)[:crowded], 0, 0, 0] = 10
    data = TensorDataset(inputs, torch.arange(samples) % 3)
    few = TensorDataset(inputs[:64], torch.arange(64) % 3)
    recipe = Recipe(batch_size=32)
    return replace(tiny_workloads.plain(), network=network, train_data=data, eval_data=few, recipe=recipe, samples=None)


def small_conv() -> Workload:
    return workload(SmallConv, 600)


def crowded() -> Workload:
    return workload(Crowded, 600, crowded=12)


def marked() -> Workload:
    return workload(Marked, 100)


def graphs_left(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Count the graphs alive at the beginning of any pass of accumulated steps, and after a look at single samples."""
    rig = Rig(context, {"seconds": 60.0, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0, **payload})
    first_look(rig, SizeRun(local_batch=4, feed=StepFeed(rig, rig.layout(4, accumulation=3))), lambda: None)
    in_steps = Marked.most_alive
    content = sample_content(rig, 10.0)
    gc.collect()
    return {"in_steps": in_steps, "content": len(Mark.alive), "samples": content.samples if content else 0}


def readings(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Look at each size in the order given, and at single samples."""
    rig = Rig(context, {"seconds": 60.0, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0, **payload})
    found = []
    for size in payload["sizes"]:
        run = SizeRun(local_batch=size, feed=StepFeed(rig, rig.layout(size)))
        phases = MemoryPhases(rig)
        first_look(rig, run, phases.end_first_step)
        phases.end_training()
        rig.evaluate_part(rig.trainee, size, rig.one_evaluation_batch(size))
        found.append({"local_batch": size, **phases.peaks(size)})
    content = sample_content(rig, payload["content_s"]) if payload["content_s"] else None
    return {"memory": found, "content": None if content is None else asdict(content)}
