"""Exact evaluation: every sample once, shared among the processes without padding."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tula_core.engine.assemble import Trainee, share_buffers
from tula_core.engine.batches import BatchSource, Pick, size_of
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
    """The metric over ``samples`` samples of all processes, and the seconds the slowest took."""

    metric: float
    samples: int
    seconds: float


def evaluation_batch(local_batch: int, sample_values: int) -> int:
    """Return the samples of an evaluation batch: no gradients are held, so twice the training batch fits.

    Small training batches get more, as far as the inputs stay small, up to 256.
    """
    return max(2 * local_batch, min(256, _SMALL_BATCH_VALUES // max(sample_values, 1)), 1)


def evaluate(trainee: Trainee, batch: int, *, limit: int | None = None, seed: int = 0) -> Evaluation:
    """Return the metric over the evaluation set, or over a fixed random part of ``limit`` samples.

    Each process takes every n-th sample; sums and counts are added in float64. Every module's train or eval flag and
    every random state is as before when this returns.
    """
    context, workload = trainee.context, trainee.workload
    context.synchronise()  # what the device still has to do of training is not evaluation
    started = time.perf_counter()
    dataset = workload.eval_set()
    samples = size_of(dataset)
    chosen = np.arange(samples)
    if limit is not None and limit < samples:
        chosen = np.sort(np.random.default_rng(derive_seed(seed, "evaluation part")).permutation(samples)[:limit])
    own = chosen[context.rank :: context.processes]
    share_buffers(trainee.network, context)
    source = BatchSource(dataset, workload.collate)
    flags = [(module, module.training) for module in trainee.network.modules()]
    total, count, stream = 0.0, 0, derive_seed(seed, "evaluation")
    trainee.network.eval()
    try:
        with preserved_random_states(), torch.inference_mode():
            for start in range(0, len(own), batch):
                pick = Pick(own[start : start + batch], fold(stream, int(own[start])))
                inputs, targets = trainee.to_device(source[pick])
                with trainee.autocast():
                    outputs = trainee.network(inputs)
                part, size = workload.metric.compute(outputs.float(), targets)
                total, count = total + float(part), count + int(size)
    finally:
        for module, flag in flags:
            module.training = flag
    total, weight, seen = context.all_reduce_sum([total, float(count), float(len(own))])
    seconds = context.all_reduce_max([time.perf_counter() - started])[0]
    return Evaluation(metric=total / weight if weight else math.nan, samples=round(seen), seconds=seconds)


def first_input_values(workload: Workload) -> int:
    """Return how many numbers the first evaluation input holds, 1 where it is no tensor or array."""
    with preserved_random_states():
        inputs = workload.eval_set()[0][0]
    shape = getattr(inputs, "shape", ())
    return math.prod(shape) if shape else 1
