"""Entry functions for worker processes in the cases."""

from __future__ import annotations

from typing import Any

import tiny_workloads
import torch

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import Step
from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step, summed_loss


def shares(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Take one step of 18 samples with the given share on each rank; return loss and weights."""
    workload = tiny_workloads.double_precision()
    trainee = assemble(workload, workload.recipe, context, seed=0)
    own: list[int] = payload["shares"]
    start = sum(own[: context.rank])
    inputs, targets = zip(*(workload.train_set()[start + index] for index in range(own[context.rank])), strict=True)
    step = Step(
        micro_batches=[(torch.stack(inputs), torch.stack(targets))],
        sizes=(own[context.rank],),
        starts=(start,),
        global_samples=sum(own),
        samples_before=0,
        samples_after=sum(own),
        ends_epoch=False,
    )
    losses, _ = run_step(trainee, step, 0.1)
    weights = torch.cat([parameter.detach().flatten() for parameter in trainee.network.parameters()])
    return {
        "loss": context.all_reduce_sum([float(summed_loss(losses, step.sizes))])[0] / sum(own),
        "weights": weights.tolist(),
    }
