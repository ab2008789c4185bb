"""Entry functions for worker processes in the engine's tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import tiny_workloads
import torch

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.data_parallel import settle_buckets
from tula_core.engine.evaluate import evaluate
from tula_core.engine.loop import run_step, summed_loss
from tula_core.engine.moments import StepMoments
from tula_core.engine.noise_meter import HookedNoise, NoiseMeter, gradients, squared_norm
from tula_core.errors import InputError


def collectives(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    context.emit("ready")
    return {
        "sum": context.all_reduce_sum([float(context.rank), 1.0]),
        "max": context.all_reduce_max([float(context.rank)]),
        "broadcast": context.broadcast(context.rank + 5.0),
        "threads": torch.get_num_threads(),
        "payload": payload,
    }


def measured_steps(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Train a few steps, measuring none, each or every third of them; return weights and how many were measured."""
    found = {}
    for every in payload["every"]:
        workload = tiny_workloads.workload()
        trainee = assemble(workload, workload.recipe, context, seed=0)
        moments = StepMoments(trainee, every) if every else None
        settle_buckets(trainee.module)
        layout = Layout(processes=context.processes, local_batch=4, accumulation=2)
        stream = BatchStream(workload.train_set(), samples=203, layout=layout, rank=context.rank, seed=3)
        measured = 0
        for _, step in zip(range(7), stream.from_samples(0), strict=False):
            due = moments.next(step) if moments is not None else None
            run_step(trainee, step, 0.1, moments=due)
            measured += due is not None
        weights = [parameter.detach().flatten() for parameter in trainee.network.parameters()]
        found[str(every)] = {"weights": torch.cat(weights).tolist(), "measured": measured}
    return found


def environment(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Return a variable of the process's environment."""
    return {"value": os.environ.get(payload["name"])}


def exact_steps(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Train a few steps at several splits of one global batch, and evaluate; every value must be the same on all."""
    results = {}
    for name, local, accumulation in payload["layouts"]:
        workload = tiny_workloads.double_precision()
        trainee = assemble(workload, workload.recipe, context, seed=0)
        layout = Layout(processes=context.processes, local_batch=local, accumulation=accumulation)
        stream = BatchStream(workload.train_set(), samples=203, layout=layout, rank=context.rank, seed=3)
        losses = []
        for step in stream.from_samples(0):
            found, _ = run_step(trainee, step, 0.1)
            losses.append(context.all_reduce_sum([float(summed_loss(found, step.sizes))])[0] / step.global_samples)
            if step.samples_after >= 2 * 203:
                break
        weights = torch.cat([parameter.detach().flatten() for parameter in trainee.network.parameters()])
        spread = context.all_reduce_max([float(weights.sum()), -float(weights.sum())])
        result = evaluate(trainee, 7)
        results[name] = {
            "losses": losses,
            "weights": weights.tolist(),
            "ranks_agree": spread[0] == -spread[1],
            "metric": result.metric,
            "evaluated": result.samples,
        }
    return results


def noise(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Compare the hook's estimate with one computed from each rank's own gradient."""
    workload = tiny_workloads.double_precision()
    trainee = assemble(workload, workload.recipe, context, seed=0)
    layout = Layout(processes=context.processes, local_batch=8)
    meter, direct = NoiseMeter(context.processes, 8), NoiseMeter(context.processes, 8)
    hooked = HookedNoise(trainee, meter)
    alone = assemble(workload, workload.recipe, _Alone(context), seed=0)  # type: ignore[arg-type]
    stream = BatchStream(workload.train_set(), samples=203, layout=layout, rank=context.rank, seed=3)
    for step in stream.from_samples(0):
        if step.ends_epoch:
            break
        alone.network.load_state_dict(trainee.network.state_dict())
        alone.optimizer.zero_grad()
        inputs, targets = step.micro_batches[0]
        workload.loss(alone.network(inputs), targets).backward()
        own = context.all_reduce_sum([squared_norm(gradients(alone.network))])[0] / context.processes
        flat = torch.cat([gradient.flatten() for gradient in gradients(alone.network)])
        torch.distributed.all_reduce(flat)
        direct.add(own, float((flat / context.processes).square().sum()))
        run_step(trainee, step, 0.05, observe=hooked.end_step)
    mine, theirs = meter.result(), direct.result()
    assert mine is not None and theirs is not None
    return {
        "estimates": mine.estimates,
        "close": bool(
            np.allclose(
                [mine.squared_gradient, mine.trace_covariance],
                [theirs.squared_gradient, theirs.trace_covariance],
                rtol=1e-10,
            )
        ),
        "trace": mine.trace_covariance,
    }


class _Alone:
    """A one-process stand-in with another context's device."""

    def __init__(self, context: WorkerContext) -> None:
        self.device, self.processes, self.rank = context.device, 1, 0


def fail(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    if context.rank == payload["rank"]:
        how = payload["how"]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(7)
        raise {
            "memory": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
            "input": InputError("data: label 12 is outside 0..9"),
            "error": ValueError("shapes (3,4) and (5,6) do not fit"),
        }[how]
    context.barrier()
    return {}


def wait(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    context.emit("ready", pid=os.getpid())
    while context.stop_signal is None:
        time.sleep(0.02)
    time.sleep(payload.get("linger_s", 0.0))
    context.emit("stopped_cleanly")
    return {"signal": context.stop_signal}
