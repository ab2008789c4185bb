"""Networks whose memory is known or depends on their samples, and a worker that reads it."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

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
