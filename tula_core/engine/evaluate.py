"""Exact evaluation: every sample once, shared among the processes without padding."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tula_core.engine.assemble import Trainee, share_buffers
from tula_core.engine.batches import BatchSource, Pick, size_of
from tula_core.engine.failures import is_out_of_memory
from tula_core.seeding import derive_seed, fold
from tula_core.workloads import Workload


@contextlib.contextmanager
def preserved_random_states() -> Iterator[None]:
    """Restore the states of python's, numpy's and torch's generators on exit."""
    python, legacy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


_SMALL_BATCH_VALUES = 2**18  # input values that a forward pass alone can always hold


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The metric over ``samples`` samples of all processes, the seconds the slowest took, the batch that fitted all."""

    metric: float
    samples: int
    seconds: float
    batch: int


def evaluation_batch(local_batch: int, sample_values: int) -> int:
    """Return the samples of an evaluation batch: no gradients are held, so twice the training batch fits.

    Small training batches get more, as far as the inputs stay small, up to 256.
    """
    return max(2 * local_batch, min(256, _SMALL_BATCH_VALUES // max(sample_values, 1)), 1)


def evaluate(trainee: Trainee, batch: int, *, limit: int | None = None, seed: int = 0) -> Evaluation:
    """Return the metric over the evaluation set, or over a fixed random part of ``limit`` samples.

    Each process takes every n-th sample; sums and counts are added in float64. A process that runs out of memory goes
    on with half the batch: sums do not depend on it, and what was trained must not be lost to an evaluation. Every
    module's train or eval flag and every random state is as before when this returns.
    """
    context, workload = trainee.context, trainee.workload
    context.synchronise()  # what the device still has to do of training is not evaluation
    started = time.perf_counter()
    samples = size_of(workload.eval_set())
    chosen = np.arange(samples)
    if limit is not None and limit < samples:
        chosen = np.sort(np.random.default_rng(derive_seed(seed, "evaluation part")).permutation(samples)[:limit])
    own = chosen[context.rank :: context.processes]
    share_buffers(trainee.network, context)
    with evaluating(trainee.network), preserved_random_states(), torch.inference_mode():
        total, count, used = _sums(trainee, own, batch, derive_seed(seed, "evaluation"))
    total, weight, seen = context.all_reduce_sum([total, float(count), float(len(own))])
    seconds, shortfall = context.all_reduce_max([time.perf_counter() - started, float(batch - used)])
    return Evaluation(
        metric=total / weight if weight else math.nan,
        samples=round(seen),
        seconds=seconds,
        batch=batch - round(shortfall),
    )


@contextlib.contextmanager
def evaluating(network: torch.nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode and each of its modules back into its own."""
    flags = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _sums(trainee: Trainee, own: NDArray[np.int64], batch: int, stream: int) -> tuple[float, int, int]:
    """Return the metric's sum and count over a process's samples, and the batch that fitted."""
    source = BatchSource(trainee.workload.eval_set(), trainee.workload.collate)
    total, count, start = 0.0, 0, 0
    while start < len(own):
        pick = Pick(own[start : start + batch], fold(stream, int(own[start])))
        try:
            part, size = _measure(trainee, source[pick])
        except Exception as error:
            if batch == 1 or not is_out_of_memory(error):
                raise
        else:
            total, count, start = total + part, count + size, start + batch
            continue
        # Only here is the failed pass's memory free: until then the exception holds its frames.
        batch //= 2
        if trainee.device.type == "cuda":
            torch.cuda.empty_cache()
    return total, count, batch


def _measure(trainee: Trainee, loaded: tuple[Any, Any]) -> tuple[float, int]:
    inputs, targets = trainee.to_device(loaded)
    with trainee.autocast():
        outputs = trainee.network(inputs)
    part, size = trainee.workload.metric.compute(outputs.float(), targets)
    return float(part), int(size)


def first_input_values(workload: Workload) -> int:
    """Return how many numbers the first evaluation input holds, 1 where it is no tensor or array."""
    with preserved_random_states():
        inputs = workload.eval_set()[0][0]
    shape = getattr(inputs, "shape", ())
    return math.prod(shape) if shape else 1
