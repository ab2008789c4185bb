"""Steps of dual batch on real processes, beside the same by the equations alone."""

from __future__ import annotations

import copy
from typing import Any

import tiny_workloads
import torch
from torch import Tensor, nn

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step
from tula_core.mitigations import make, options_of
from tula_core.mitigations.method import Setting
from tula_core.workloads import Workload

RATE = 0.2
SAMPLES = 203


def _workload(momentum: float) -> Workload:
    made = tiny_workloads.workload(
        lambda: tiny_workloads.Mlp(torch.float64), dtype=torch.float64, momentum=momentum, weight_decay=0.01
    )
    assert len(made.train_set()) == SAMPLES
    return made


def _setting(made: Workload, layout: Layout, rank: int) -> Setting:
    return Setting(
        recipe=made.recipe,
        processes=layout.processes,
        rank=rank,
        local_batch=layout.local_batch,
        accumulation=layout.accumulation,
        train_samples=SAMPLES,
        total_samples=3 * SAMPLES,
        seed=0,
    )


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def epochs(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Take an epoch of each case."""
    return {"found": [rounds(context, {**payload, **case}) for case in payload["cases"]]}


def rounds(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Take the steps of an epoch; return this way's weights, those of the equations, and whether processes agree."""
    layout = Layout(
        processes=context.processes, local_batch=payload["local_batch"], accumulation=payload["accumulation"]
    )
    made = _workload(payload["momentum"])
    methods = make(["dual-batch"], _setting(made, layout, context.rank), {"dual-batch": payload["options"]})
    trainee = assemble(made, made.recipe, context, seed=0, methods=methods)
    begun = copy.deepcopy(trainee.network)
    uneven = Layout(
        processes=layout.processes,
        local_batch=layout.local_batch,
        accumulation=layout.accumulation,
        shares=methods.shares,
    )
    stream = BatchStream(made.train_set(), samples=SAMPLES, layout=uneven, rank=context.rank, seed=3)
    taken = []
    for step in stream.from_samples(0):
        run_step(trainee, step, RATE)
        methods.after_step(trainee.network, step.global_samples, step.samples_after)
        taken.append(methods.decided()["dual-batch.updates_of_small"])
        if step.ends_epoch:
            break
    total = float(flat(trainee.network).sum())
    agree = context.all_reduce_max([total])[0] == -context.all_reduce_max([-total])[0]
    found = {"weights": flat(trainee.network).tolist(), "agree": agree, "updates": taken}
    if context.rank == 0:
        options = options_of("dual-batch", {"dual-batch": payload["options"]})
        found["expected"] = by_equations(begun, made, uneven, options["extra"] == 1.0).tolist()
    context.barrier()
    return found


def by_equations(network: nn.Module, made: Workload, layout: Layout, plain: bool) -> Tensor:
    """Return the weights after an epoch, each process in its turn, with momentum written out."""
    assert layout.shares is not None
    decay, momentum = made.recipe.weight_decay, made.recipe.momentum
    streams = [
        BatchStream(made.train_set(), samples=SAMPLES, layout=layout, rank=rank, seed=3).from_samples(0)
        for rank in range(layout.processes)
    ]
    weights, velocity = flat(network), torch.zeros_like(flat(network))
    while True:
        steps = [next(stream) for stream in streams]
        total, count = torch.zeros_like(weights), 0.0
        for step, (_, update_batch) in zip(steps, layout.shares, strict=True):
            inputs = torch.cat([batch[0] for batch in step.micro_batches])
            targets = torch.cat([batch[1] for batch in step.micro_batches])
            own, share = len(inputs), len(inputs) / step.global_samples
            updates = 1 if plain else max(1, min(-(-own // update_batch), own // 2))
            moved, speed = weights.clone(), velocity.clone()
            for part in torch.arange(own).tensor_split(updates):
                slope = _gradient(network, moved, inputs[part], targets[part])
                speed = momentum * speed + slope + decay * moved
                moved = moved - RATE * speed
                total += share * speed
            count += share * updates
        weights, velocity = weights - RATE * total, total / count
        if steps[0].ends_epoch:
            return weights


def _gradient(network: nn.Module, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    nn.utils.vector_to_parameters(weights, network.parameters())
    loss = nn.functional.cross_entropy(network(inputs), targets)
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, list(network.parameters()))])
