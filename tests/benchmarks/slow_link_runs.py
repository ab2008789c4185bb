"""Training over an emulated link: what the workers of each run are given, and how long it takes."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.generalization_jobs import ENTRY, FINAL, BenchJob, Scale, job_name, sizes
from tests.benchmarks.generalization_methods import recipe_of
from tests.benchmarks.network_link import Link
from tests.benchmarks.slow_link_choice import MACHINES, Weighed, placed_for
from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job
from tula_core.mitigations.batches.stages import Course
from tula_core.records import Candidate
from tula_core.training.relaunch import worlds_of
from tula_core.training.run import ENTRY as TRAIN

PROBE_BYTES = 25_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What is trained under a name; ``chosen`` is its forecast where the planner took it."""

    name: str
    candidate: Candidate
    chosen: Weighed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all runs share; ``rate`` is that of the small batch."""

    scale: Scale
    bench: BenchJob
    rate: float

    def job(self, row: Row, seed: int) -> Job:
        """Return the job of a run, every field of its recipe set."""
        recipe = recipe_of(self.bench, self.rate)
        methods = list(row.candidate.mitigation) or "none"
        name = job_name(self.scale, self.bench, FINAL)
        job = Job(name=name, workload=ENTRY, recipe=recipe, target="none", mitigation=methods, seed=seed)
        return job.resolved(job.recipe, None)

    def payloads(self, row: Row, seed: int, checkpoint: Path) -> list[dict[str, Any]]:
        """Return what the workers of a run need, once for each part of it that has other processes."""
        job, (samples, _) = self.job(row, seed), sizes(self.scale.name, self.bench.name, FINAL)
        candidate = placed_for(row.candidate, Course(recipe=job.recipe, train_samples=samples, options={}))
        return [
            {
                "job": job.to_dict(),
                **world.payload(),
                "global_batch": candidate.global_batch,
                "mitigation": list(candidate.mitigation),
                "train_samples": samples,
                "checkpoint": str(checkpoint),
                "resume": number > 0,
            }
            for number, world in enumerate(worlds_of(candidate))
        ]


def train(setting: Setting, row: Row, seed: int, link: Link) -> dict[str, Any]:
    """Train one run and return its seconds, steps, accuracy, and how often the rate was lowered.

    Seconds begin where the first processes are ready, and end with the last.
    """
    seconds, found = 0.0, {}
    with tempfile.TemporaryDirectory() as folder:
        for number, payload in enumerate(setting.payloads(row, seed, Path(folder) / "checkpoint.pt")):
            nodes = payload["stages"][0]["nodes"]
            task = WorkerTask(
                entry=TRAIN,
                payload=payload,
                folder=Path(folder) / f"part-{number}",
                nodes=nodes,
                prefixes=link.prefixes[:nodes],
            )
            ended = launch(task, lambda event: None)
            found = dict(ended.unwrap())
            seconds += ended.seconds - (0.0 if number else ended.start_up_s or 0.0)
    return {
        "row": row.name,
        "seed": seed,
        "seconds": seconds,
        "steps": found["steps"],
        "accuracy": found["curve"][-1]["metric"],
        "reductions": found["reductions"],
    }


def seen_gbps(link: Link) -> float:
    """Return the speed at which each machine sends in an all-reduce."""
    with tempfile.TemporaryDirectory() as folder:
        task = WorkerTask(
            entry="tests.benchmarks.slow_link_runs:measure",
            payload={},
            folder=Path(folder),
            nodes=MACHINES,
            prefixes=link.prefixes,
        )
        return float(launch(task, lambda event: None).unwrap()["gbps"])


def measure(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Entry of the workers: time an all-reduce, in which each of two sends as much as the tensor holds."""
    import torch

    values = torch.zeros(PROBE_BYTES // 4)
    seconds = []
    for _ in range(4):
        context.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(values)
        seconds.append(time.perf_counter() - began)
    return {"gbps": 8 * PROBE_BYTES / statistics.median(seconds[1:]) / 1e9}
