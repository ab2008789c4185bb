"""A worker that compares a step's gradient with that of the full batch, for a loss that leaves out labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tiny_workloads
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step, summed_loss
from tula_core.job import Recipe
from tula_core.workloads import Workload

IGNORED = 255
SAMPLES = 24
SIDE = 10


class Pixels(nn.Module):
    """One convolution per pixel, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


def images(empty: bool = False) -> TensorDataset:
    """Half of the images have 90 % of their pixels labelled, half 10 %; with ``empty`` half have none."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (SAMPLES, SIDE, SIDE), generator=generator)
    share = torch.where(torch.arange(SAMPLES) % 2 == 0, 0.9, 0.0 if empty else 0.1)
    out = torch.rand(SAMPLES, SIDE, SIDE, generator=generator) >= share[:, None, None]
    inputs = torch.randn(SAMPLES, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, labels.masked_fill(out, IGNORED))


def workload(empty: bool = False) -> Workload:
    data = images(empty)
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED, weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
    recipe = Recipe(learning_rate=0.1, batch_size=SAMPLES, momentum=0.0, weight_decay=0.0)
    return replace(
        tiny_workloads.plain(), network=Pixels, train_data=data, eval_data=data, loss=loss, recipe=recipe, samples=None
    )


def gradients_agree(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Return by layout how far a step's gradient is from the full batch's, and the same of its mean loss."""
    task = workload(payload["empty"])
    whole = assemble(task, task.recipe, context, seed=0)
    inputs, labels = task.train_set().tensors  # type: ignore[attr-defined]
    loss = task.loss(whole.network(inputs), labels)
    loss.backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in whole.network.parameters()])
    errors = {}
    for local, accumulation in payload["layouts"]:
        trainee = assemble(task, task.recipe, context, seed=0)
        layout = Layout(processes=context.processes, local_batch=local, accumulation=accumulation)
        stream = BatchStream(task.train_set(), samples=SAMPLES, layout=layout, rank=context.rank, seed=3)
        step = next(stream.from_samples(0))
        losses, _ = run_step(trainee, step, 0.0)
        found = torch.cat([parameter.grad.flatten() for parameter in trainee.network.parameters()])
        mean = context.all_reduce_sum([float(summed_loss(losses, step.sizes))])[0] / step.global_samples
        errors[f"{local}x{accumulation}"] = [
            float((found - wanted).norm() / wanted.norm()),
            abs(mean / float(loss) - 1),
        ]
    return errors
