"""`Outcome`: what a run really did, under the same keys as the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from tula_core.records.candidate import QUANTITIES
from tula_core.records.codec import Reading

HARDWARE_BOUND = frozenset({"step_time_s", "time_to_train_s", "node_hours", "cost_usd", "energy_j", "memory_bytes"})
"""The quantities whose forecast holds for the hardware of the plan alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """An evaluation during training."""

    samples: int
    epochs: float
    steps: int
    learning_rate: float
    train_loss: Reading
    metric: Reading
    elapsed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One logical run, all its attempts together.

    ``hardware`` is where it ran. ``predicted`` and ``actual`` hold the same names (`QUANTITIES`); None where unknown.
    ``actual`` times and costs count every attempt, also those that failed.
    """

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int
    job_id: str
    job_hash: str
    job_name: str
    workload: str
    hardware: str
    predictor: str
    attempt: int
    status: Literal["FINISHED", "FAILED", "KILLED"]
    failure: str | None
    nodes: int
    processes_per_node: int
    local_batch: int
    accumulation: int
    mitigation: tuple[str, ...]
    learning_rate: float
    learning_rate_reductions: int
    target_reached: bool | None  # None where the job has no target
    predicted: Mapping[str, float | None]
    predicted_low: Mapping[str, float | None]
    predicted_high: Mapping[str, float | None]
    actual: Mapping[str, float | None]
    curve: tuple[CurvePoint, ...]
    run_folder: str
    finished_at: str  # ISO 8601, UTC
    planned_hardware: str | None = None  # the plan's, where the run was on another than that
    precision: str | None = None  # where it was another than the recipe's
    energy_source: str | None = None  # the meters behind actual energy, in words

    def judges(self, quantity: str) -> bool:
        """Return whether the actual value judges the forecast: not where that was made for another machine."""
        return self.planned_hardware is None or quantity not in HARDWARE_BOUND

    def error_pct(self, quantity: str) -> float | None:
        """Return 100 (predicted - actual) / actual.

        None where either is unknown or the actual value is zero, and for a run that did not finish: what it spent is
        no outcome of what was forecast.
        """
        assert quantity in QUANTITIES, quantity
        if self.status != "FINISHED":
            return None
        predicted, actual = self.predicted.get(quantity), self.actual.get(quantity)
        if predicted is None or not actual:
            return None
        return 100.0 * (predicted - actual) / actual
