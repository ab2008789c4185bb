"""Synthetic profiles from a known truth, and jobs to go with them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tula_core.job import Job, Recipe, Target
from tula_core.models.learning.schedules import schedule_factor
from tula_core.records import (
    CommunicationTiming,
    EvaluationTiming,
    GradientNoise,
    Hardware,
    MemoryUse,
    Pilot,
    PilotPoint,
    ProbeUse,
    Profile,
    StartUp,
    StepTiming,
    WorkloadFacts,
)

TRUTH = {
    "floor_s": 2e-3,
    "slope_s": 1e-4,
    "optimizer_s": 4e-4,
    "loader_slope_s": 2e-6,
    "latency_s": 2e-4,
    "bandwidth": 1e9,
    "fixed_bytes": 3e8,
    "sample_bytes": 2e5,
    "gap": 2.2,
    "power": 0.45,
    "critical_batch": 200.0,
    "anneal": 0.75,
}
"""What `make_profile` makes its measurements from; times in seconds, sizes in bytes or samples."""


def true_step_time_s(nodes: int, processes_per_node: int, local_batch: int, accumulation: int = 1) -> float:
    """Time of a step without any contention, overlap or noise."""
    return sum(_parts(nodes, processes_per_node, local_batch, accumulation).values())


def true_metric(samples: float, global_batch: int, annealing: float) -> float:
    """Accuracy after ``samples`` training samples, of ten classes."""
    steps = samples / (global_batch + TRUTH["critical_batch"])
    return max(0.1, 1.0 - TRUTH["gap"] * steps ** -TRUTH["power"] * TRUTH["anneal"] ** annealing)


def _parts(nodes: int, processes_per_node: int, local_batch: int, accumulation: int) -> dict[str, float]:
    others, message = nodes * processes_per_node - 1, 4e5
    return {
        "loader_s": accumulation * TRUTH["loader_slope_s"] * local_batch,
        "compute_s": accumulation * (TRUTH["floor_s"] + TRUTH["slope_s"] * local_batch),
        "communication_s": 2 * others * TRUTH["latency_s"] + 2 * others / (others + 1) * message / TRUTH["bandwidth"],
        "optimizer_s": TRUTH["optimizer_s"],
    }


def make_step(
    nodes: int = 1, processes_per_node: int = 1, local_batch: int = 32, accumulation: int = 1, factor: float = 1.0
) -> StepTiming:
    """One timed configuration of the truth, all of it times ``factor``."""
    parts = {k: v * factor for k, v in _parts(nodes, processes_per_node, local_batch, accumulation).items()}
    step_time_s = sum(parts.values())
    return StepTiming(
        nodes=nodes,
        processes_per_node=processes_per_node,
        local_batch=local_batch,
        accumulation=accumulation,
        steps=30,
        step_time_s=step_time_s,
        step_time_median_s=step_time_s,
        step_time_error_s=0.005 * step_time_s,
        block_scatter=0.0,
        first_step_s=step_time_s + 0.2,
        order=0,
        **parts,
    )


def make_pilot(global_batch: int, samples: int = 6000, schedule: str = "cosine", points: int = 6) -> Pilot:
    """A pilot of the truth with its schedule in its own length."""
    fractions = [(i + 1) / points for i in range(points)]
    return Pilot(
        global_batch=global_batch,
        learning_rate=0.05,
        planned_samples=samples,
        seconds=2.0,
        diverged=False,
        points=tuple(
            PilotPoint(
                samples=round(samples * f),
                schedule_fraction=f,
                annealing=1 - schedule_factor(schedule, f),
                train_loss=1.0,
                metric=true_metric(samples * f, global_batch, 1 - schedule_factor(schedule, f)),
                eval_samples=5000,
            )
            for f in fractions
        ),
    )


def make_facts(**overrides: Any) -> WorkloadFacts:
    """Facts of a small network on ten classes."""
    facts = WorkloadFacts(
        name="synthetic",
        parameters=100_000,
        gradient_bytes=400_000,
        train_samples=20_000,
        eval_samples=5_000,
        sample_shape=(1, 28, 28),
        sample_bytes=784,
        metric="accuracy",
        higher_is_better=True,
        metric_ceiling=1.0,
        chance=0.1,
        has_batch_norm=True,
        code_fingerprint="0" * 16,
        notes=(),
    )
    return dataclasses.replace(facts, **overrides)


def make_profile(**overrides: Any) -> Profile:
    """A profile of the truth on a two-core CPU machine; any field of `Profile` can be given instead."""
    worlds, batches = ((1, 1), (1, 2)), (16, 64, 256)
    profile = Profile(
        schema_version=Profile.SCHEMA_VERSION,
        job=make_job().to_dict(),
        fingerprint="f" * 16,
        facts=make_facts(),
        hardware=Hardware(
            fingerprint="a" * 16,
            device="cpu",
            device_name="cpu",
            devices=2,
            cores=2,
            memory_bytes=8 * 2**30,
            device_memory_bytes=None,
            threads_per_process=1,
            versions={},
        ),
        steps=tuple(make_step(n, p, b) for n, p in worlds for b in batches),
        communication=tuple(
            CommunicationTiming(
                nodes=1,
                processes_per_node=2,
                message_bytes=size,
                time_s=2 * TRUTH["latency_s"] + size / TRUTH["bandwidth"],
            )
            for size in (1_000, 100_000, 400_000, 4_000_000)
        ),
        memory=tuple(
            MemoryUse(
                nodes=1,
                processes_per_node=1,
                local_batch=b,
                peak_bytes=round(TRUTH["fixed_bytes"] + TRUTH["sample_bytes"] * b),
                outcome="ok",
            )
            for b in batches
        ),
        start_up=tuple(StartUp(nodes=n, processes_per_node=p, seconds=3.0 + p) for n, p in worlds),
        evaluation=tuple(
            EvaluationTiming(nodes=n, processes_per_node=p, samples=5_000, seconds=0.5 / p) for n, p in worlds
        ),
        checkpoint_s=0.05,
        noise=GradientNoise(
            small_batch=32,
            large_batch=64,
            estimates=40,
            squared_gradient=1.0,
            trace_covariance=150.0,
            noise_scale_samples=150.0,
        ),
        pilots=(make_pilot(64), make_pilot(512)),
        probe=ProbeUse(budget_s=60.0, used_s=50.0, stopped_because="the sweep was done"),
        warnings=(),
    )
    return dataclasses.replace(profile, **overrides)


def make_job(**overrides: Any) -> Job:
    """A resolved job for `make_profile`: 5 epochs at batch 64, accuracy 0.85 wanted; any field can be given instead."""
    recipe = Recipe(**Recipe().model_dump())
    fields: dict[str, Any] = {"workload": "synthetic", "recipe": recipe, "target": Target(value=0.85)}
    return Job(**{**fields, **overrides})


def relative_error(predicted: float, actual: float) -> float:
    """|ln(predicted/actual)|."""
    return abs(math.log(predicted / actual))
