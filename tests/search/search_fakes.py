"""A predictor with closed forms, and a profile and job to go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tula_core.job import Job, Recipe
from tula_core.models.decision.chances import expected
from tula_core.records import (
    Candidate,
    ExpectedPoint,
    Hardware,
    Interval,
    PowerUse,
    ProbeUse,
    Profile,
    Row,
    StepTiming,
    WorkloadFacts,
)
from tula_core.records.candidate import UNKNOWN

GIB = 2**30


def around(value: float | None, spread: float = 0.1) -> Interval:
    if value is None:
        return UNKNOWN
    return Interval(value=value, low=value * (1 - spread), high=value * (1 + spread))


@dataclass(frozen=True)
class FakeTable:
    """Rows that are there already."""

    made: list[Row]

    @property
    def feasible(self) -> np.ndarray:
        return np.array([row.feasible for row in self.made], dtype=bool)

    def values(self, quantity: str, /) -> np.ndarray:
        return np.array([row[quantity].value for row in self.made], dtype=float)

    def expected(self, quantity: str, /) -> np.ndarray:
        return np.array([expected(row[quantity]) if row[quantity].value else np.nan for row in self.made])

    def rows(self, places: Sequence[int], /) -> list[Row]:
        return [self.made[place] for place in places]


@dataclass
class FakePredictor:
    """step = A (floor + slope b) + latency (P - 1); epochs = E_min (1 + B / B_crit); memory = base + each b."""

    samples: int = 60_000
    floor_s: float = 0.004
    slope_s: float = 0.0005
    latency_s: float = 0.002
    least_epochs: float = 5.0
    critical_batch: float = 1000.0
    accuracy_loss: float = 2e-5
    base_bytes: float = 0.5 * GIB
    each_bytes: float = 4 * 2**20
    price: float | None = None
    watts: float | None = None
    memory_known: bool = True
    accuracy_known: bool = True
    chance: float | None = None
    keeping: float | None = None
    label: str = "tula-predictor v1 (built-in)"
    assumptions: tuple[str, ...] = ("The forecast is a closed form.",)
    unknown_layouts: frozenset[tuple[int, int]] = frozenset()
    spot: Row | None = None
    calls: list[int] = field(default_factory=list)

    def quantities(self, c: Candidate) -> dict[str, float | None]:
        step = c.accumulation * (self.floor_s + self.slope_s * c.local_batch) + self.latency_s * (c.processes - 1)
        epochs = self.least_epochs * (1 + c.global_batch / self.critical_batch)
        steps = epochs * self.samples / c.global_batch
        time = None if (c.nodes, c.processes_per_node) in self.unknown_layouts else steps * step + 2.0
        hours = None if time is None else time * c.nodes / 3600
        return {
            "step_time_s": step,
            "time_to_train_s": time,
            "node_hours": hours,
            "cost_usd": None if self.price is None or hours is None else hours * self.price,
            "energy_j": None if self.watts is None or time is None else self.watts * c.processes * time,
            "memory_bytes": self.base_bytes + self.each_bytes * c.local_batch if self.memory_known else None,
            "epochs": epochs,
            "steps": steps,
            "accuracy": 0.95 - self.accuracy_loss * c.global_batch if self.accuracy_known else None,
        }

    def forecast(self, candidates: Sequence[Candidate], /) -> list[Row]:
        self.calls.append(len(candidates))
        return [
            Row(
                candidate=c,
                feasible=True,
                infeasible_because=None,
                measured=c.processes == 1,
                forecast={name: around(value) for name, value in self.quantities(c).items()},
            )
            for c in candidates
        ]

    def forecast_columns(self, candidates: Sequence[Candidate], /) -> FakeTable:
        return FakeTable(self.forecast(candidates))

    def max_local_batch(
        self,
        nodes: int,
        processes_per_node: int,
        limit_bytes: int,
        precision: str | None = None,
        mitigation: Sequence[str] = (),
        /,
    ) -> int | None:
        if not self.memory_known:
            return None
        return max(0, int((limit_bytes / 1.1 - self.base_bytes) / self.each_bytes))

    def on_spot(self, candidate: Candidate, /) -> Row | None:
        return self.spot

    def expected_curve(self, candidate: Candidate, /) -> tuple[ExpectedPoint, ...] | None:
        if not self.accuracy_known:
            return None
        last = 0.95 - self.accuracy_loss * candidate.global_batch
        return tuple(
            ExpectedPoint(epochs=at, low=last * at / 3 - 0.1, value=last * at / 3, high=last * at / 3 + 0.1)
            for at in (1, 2, 3)
        )

    def keeping_probability(self, candidate: Candidate, reference: Candidate, slack: float, /) -> float | None:
        return self.keeping

    def reach_probability(self, candidate: Candidate, /) -> float | None:
        return self.chance


def job(recipe: Mapping[str, Any] | None = None, **parts: Any) -> Job:
    asked = Job.from_mapping({"workload": "digits-cnn", "recipe": dict(recipe or {}), **parts})
    return asked.resolved(Recipe(), None)


def timing(nodes: int, processes: int, local: int, accumulation: int = 1) -> StepTiming:
    return StepTiming(
        nodes=nodes,
        processes_per_node=processes,
        local_batch=local,
        accumulation=accumulation,
        steps=20,
        step_time_s=0.01,
        step_time_median_s=0.01,
        step_time_error_s=0.001,
        block_scatter=None,
        first_step_s=0.1,
        loader_s=0.0,
        compute_s=0.009,
        communication_s=0.0,
        optimizer_s=0.001,
        order=0,
    )


def profile(
    samples: int = 60_000,
    steps: tuple[StepTiming, ...] = (),
    *,
    device: Any = "cpu",
    memory_bytes: int = 16 * GIB,
    device_memory_bytes: int | None = None,
    higher_is_better: bool = True,
    warnings: tuple[str, ...] = (),
    power: tuple[PowerUse, ...] = (),
) -> Profile:
    return Profile(
        schema_version=1,
        job={},
        fingerprint="0123456789abcdef0123",
        facts=WorkloadFacts(
            name="digits-cnn",
            parameters=1000,
            gradient_bytes=4000,
            train_samples=samples,
            eval_samples=500,
            sample_shape=(1, 8, 8),
            sample_bytes=256,
            metric="accuracy" if higher_is_better else "error",
            higher_is_better=higher_is_better,
            metric_ceiling=1.0,
            chance=0.1,
            has_batch_norm=False,
            code_fingerprint="c0de",
            notes=(),
        ),
        hardware=Hardware(
            fingerprint="f00d",
            device=device,
            device_name="fake",
            devices=2,
            cores=2,
            memory_bytes=memory_bytes,
            device_memory_bytes=device_memory_bytes,
            threads_per_process=1,
            versions={"torch": "2"},
        ),
        steps=steps,
        communication=(),
        memory=(),
        start_up=(),
        evaluation=(),
        checkpoint_s=None,
        noise=None,
        pilots=(),
        probe=ProbeUse(budget_s=60, used_s=36, stopped_because="answered"),
        warnings=warnings,
        power=power,
    )
