"""What the methods of a run are told before it begins."""

from __future__ import annotations

from tula_core.engine.batches import Layout
from tula_core.engine.context import WorkerContext
from tula_core.job import Job
from tula_core.mitigations.method import Setting


def setting_of(job: Job, context: WorkerContext, most: Layout, samples: int, planned_batch: int | None) -> Setting:
    """Return the setting of a process whose largest layout is ``most``, of a training set of ``samples``."""
    return Setting(
        recipe=job.recipe,
        processes=context.processes,
        rank=context.rank,
        local_batch=most.local_batch,
        accumulation=most.accumulation,
        train_samples=samples,
        total_samples=job.recipe.epochs * samples,
        seed=job.seed,
        planned_batch=planned_batch,
    )
