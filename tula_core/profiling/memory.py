"""What one local batch needs, phase by phase; what single samples need; what loader workers hold."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from tula_core.engine.batches import BatchSource, Pick
from tula_core.engine.evaluate import preserved_random_states
from tula_core.engine.failures import kind_of
from tula_core.engine.peak_memory import peak_bytes, release_unused, reset_peak
from tula_core.profiling.rig import Rig
from tula_core.records import ContentMemory, HostMemory
from tula_core.seeding import derive_seed, fold

MOST_SAMPLED = 300  # finds a case of one in a hundred with 95 %
_FEWEST_SAMPLED = 8


class MemoryPhases:
    """The peaks of one local batch's phases; make it before the first step.

    Apart from the first step, which may try out algorithms, training steps hold the optimizer's state. Where an
    allocator keeps freed memory it is made to give it back between phases, so that none shows in the next one's peak.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._first = self._train = 0
        self._begin()
        # Only now, without what loading the data left behind, is it what every later reading holds.
        self._base = held_bytes(rig.context.device)

    def end_first_step(self) -> None:
        """Take the first step's peak and begin with the steady ones."""
        self._first = peak_bytes(self._rig.context.device)
        if self._rig.job.recipe.loader_workers or self._rig.context.device.type == "cuda":
            self._rig.context.emit("host", **asdict(host_memory(self._rig)))
        self._begin()

    def end_training(self) -> None:
        """Take the peak of steady steps and begin with the evaluation."""
        self._train = peak_bytes(self._rig.context.device)
        self._begin()

    def restart_evaluation(self) -> None:
        """Forget the evaluation so far: it was not the one that a run makes."""
        self._begin()

    def peaks(self, local_batch: int) -> dict[str, int]:
        """End with the evaluation and return the peaks of the fullest process, as `MemoryUse` names them."""
        context = self._rig.context
        evaluated = -(-self._rig.one_evaluation_batch(local_batch) // context.processes)
        own = [self._base, self._first, self._train, peak_bytes(context.device)]
        base, first, train, test = (int(value) for value in context.all_reduce_max([float(value) for value in own]))
        return {
            "peak_bytes": max(train, test),
            "base_bytes": base,
            "first_peak_bytes": first,
            "train_peak_bytes": train,
            "eval_peak_bytes": test,
            "eval_batch": evaluated,
        }

    def _begin(self) -> None:
        release_unused(self._rig.context.device)
        reset_peak(self._rig.context.device)


def held_bytes(device: torch.device) -> int:
    """Return the memory that this process holds now."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    return int(psutil.Process().memory_info().rss)


def host_memory(rig: Rig) -> HostMemory:
    """Return what this process and its fullest loader worker hold of the host; call it while workers are alive."""
    process = psutil.Process()
    workers = []
    for child in process.children(recursive=True):
        try:
            workers.append(child.memory_full_info().uss)
        except psutil.Error:  # it has just ended, or may not be looked at
            continue
    resident = process.memory_info().rss if rig.context.device.type == "cuda" else None
    return HostMemory(process_bytes=resident, worker_bytes=max(workers, default=None))


def sample_content(rig: Rig, seconds: float) -> ContentMemory | None:
    """Return what a forward pass keeps of random samples, within about ``seconds``; None where too few could be tried.

    Each is tried as a pair with itself, which batch norm can take. Weights do not change, random states neither.
    """
    until = time.monotonic() + seconds
    order = np.random.default_rng(derive_seed(rig.job.seed, "content")).permutation(rig.samples)[:MOST_SAMPLED]
    source = BatchSource(rig.workload.train_set(), rig.workload.collate)
    stream = derive_seed(rig.job.seed, "content transform")
    found: list[float] = []
    shapes: set[tuple[int, ...]] = set()
    with preserved_random_states():
        for index in order.tolist():
            if time.monotonic() > until and len(found) >= _FEWEST_SAMPLED:
                break
            if time.monotonic() > until + seconds:
                return None
            batch = source[Pick(np.array([index, index]), fold(stream, index))]
            shapes.add(_shape_of(batch[0]))
            try:
                found.append(saved_bytes(rig, batch) / 2)
            except Exception as error:
                if kind_of(error) != "out_of_memory":
                    raise
                return None  # beside all that the probe still holds; a run's sizes are tried by themselves
    if len(found) < _FEWEST_SAMPLED:
        return None
    return ContentMemory(
        samples=len(found),
        mean_bytes=statistics.fmean(found),
        sd_bytes=statistics.stdev(found),
        worst_bytes=max(found),
        padded=len(shapes) > 1,
    )


def _shape_of(inputs: Any) -> tuple[int, ...]:
    """Return the shape of one sample, of the first part of inputs that have several; empty where there is no tensor."""
    while isinstance(inputs, (list, tuple, dict)) and inputs:
        inputs = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
    return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()


def saved_bytes(rig: Rig, batch: tuple[Any, Any]) -> float:
    """Return the bytes that autograd keeps for the backward pass of one batch, weights left out, each storage once."""
    trainee = rig.trainee
    own = {tensor.untyped_storage().data_ptr() for tensor in trainee.network.state_dict().values()}
    kept: dict[int, int] = {}
    held: list[Tensor] = []  # keeps storages alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor.detach())
        return tensor.detach()  # itself, an operation's own result would keep its graph alive for ever

    inputs, targets = trainee.to_device(batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), trainee.autocast():
        loss = trainee.workload.loss(trainee.network(inputs), targets)
    del loss
    return float(math.fsum(kept.values()))
