"""Workloads that open other data in every process, unless somebody sees to it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from case_workloads import Numbered, workload
from torch.utils.data import Dataset, IterableDataset

from tula_core.engine.context import WorkerContext
from tula_core.job import Job
from tula_core.profiling.rig import Rig
from tula_core.workloads import Workload
from tula_core.workloads.load import load_workload


class Chosen(Dataset[Any]):
    """Some of 64 numbered items, in an order."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers, self.data = list(numbers), Numbered(64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.data[self.numbers[index]]


class Shuffled(IterableDataset[Any]):
    """A stream in another order whenever it is opened."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(64))
        random.shuffle(order)
        return (Numbered(64)[index] for index in order)


def shuffled_stream() -> Workload:
    return replace(workload(), train_data=Shuffled(), samples=64)


def set_order() -> Workload:
    """The files of a folder, held in a set."""
    return replace(workload(), train_data=Chosen(int(name[3:]) for name in {f"img{index}" for index in range(64)}))


def random_split() -> Workload:
    order = np.random.permutation(64)  # as many scripts do
    return replace(workload(), train_data=Chosen(order[:48]), eval_data=Chosen(order[48:]))


def late_split() -> Workload:
    """Each data set is opened by itself, as its part of one split."""
    return replace(
        workload(),
        train_data=lambda: Chosen(torch.randperm(64).tolist()[:48]),
        eval_data=lambda: Chosen(torch.randperm(64).tolist()[48:]),
    )


def own_generator() -> Workload:
    """A split by a generator that nobody can seed from outside."""
    order = np.random.default_rng().permutation(64)
    return replace(workload(), train_data=Chosen(order[:48]), eval_data=Chosen(order[48:]))


def opened(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Write down which numbers each data set of each workload holds, in order, in this process."""
    context.emit("ready")
    for name in payload["workloads"]:
        loaded = load_workload(Job(workload=f"unsteady_workloads:{name}"))
        for role, data in (("train", loaded.train_set()), ("eval", loaded.eval_set())):
            numbers = [round(100 * float(data[index][0][0])) for index in range(len(data))]  # type: ignore[arg-type]
            (Path(payload["log"]) / f"{name}-{role}-{payload['attempt']}-{context.rank}").write_text(str(numbers))
    return {}


def rig(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Make ready to measure."""
    context.emit("ready")
    request = Job(workload="unsteady_workloads:own_generator")
    job = request.resolved(load_workload(request).recipe, None)
    Rig(context, {"job": job.to_dict(), "seconds": 9.0, "launched_at_s": 0.0, "share": 1.0, "later_starts": 0})
    return {}
