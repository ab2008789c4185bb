"""A pilot in half precision counts as training does: what was skipped taught nothing."""

import time

import pytest
from case_workloads import overflowing

from tula_core.engine.batches import Layout
from tula_core.engine.context import WorkerContext
from tula_core.job import Job
from tula_core.profiling import pilot as pilots
from tula_core.profiling.rig import Rig


@pytest.mark.parametrize(
    ("first", "points", "positions"),
    [
        (80, [(32, 0.2), (112, 0.7)], [0, 0, 0, 0, 16, 32, 48, 64, 80, 96]),
        (32, [(112, 0.7)], [0, 0, 0, 0, 16, 32, 48, 64, 80, 96]),
    ],
)
def test_skipped_updates_count_neither_in_the_schedule_nor_in_the_curve(
    tmp_path, kept_signals, monkeypatch, first: int, points: list[tuple[int, float]], positions: list[int]
) -> None:
    """Elsewhere the curve claims samples that moved no weight, and the forecast of a target is fitted to them."""
    asked, said = [], []
    monkeypatch.setattr(
        pilots.LearningRate, "at", lambda rate, samples: asked.append(samples) or 0.01 * (1 - samples / 160)
    )
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    job = Job(workload="case_workloads:overflowing").resolved(overflowing().recipe, None)
    task = {"job": job.to_dict(), "seconds": 60, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0}
    rig = Rig(context, task)
    monkeypatch.setattr(context, "emit", lambda kind, **data: said.append((kind, data)))
    plan = pilots.PilotPlan(
        layout=Layout(processes=1, local_batch=16),
        planned_samples=160,
        evaluate_at=(first, 160),
        eval_limit=100,
        steps=10,
    )
    pilots._run_pilot(rig, plan, stop_at_s=-1e9, with_noise=False)
    context.close()
    assert asked == positions
    (*_, (kind, data)) = said
    assert kind == "pilot" and [(p["samples"], p["schedule_fraction"]) for p in data["points"]] == points
