"""`Outcome`: what a run really did, under the same keys as the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tula_core.records.candidate import QUANTITIES, Interval, Stage
from tula_core.records.codec import Reading
from tula_core.records.mitigation import MitigationEffect

LABELS: Mapping[str, str] = {
    "step_time_s": "step time",
    "time_to_train_s": "time to train",
    "node_hours": "node time",
    "cost_usd": "cost",
    "energy_j": "energy",
    "memory_bytes": "memory, fullest process",
    "epochs": "epochs",
    "steps": "steps",
    "accuracy": "accuracy",
}
"""What people call the quantities."""
SPENT = frozenset({"time_to_train_s", "node_hours", "cost_usd", "energy_j"})
"""The quantities that add up over all methods of a run, so that their forecast holds also where methods changed."""
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
class MethodChange:
    """A method that training dropped for another, because it diverged or its curve fell below what was forecast.

    Attributes
    ----------
    samples, epochs
        Where training went on from: the last weights that were still good.
    seen_at_samples
        Where the cause was seen, not before ``samples``.
    dropped, taken
        The methods before and after; empty for none.
    dropped_batch, taken_batch
        Their global batches.
    cause
        ``diverged`` or ``below forecast``.
    because
        What was seen beside what was forecast, in words.
    """

    samples: int
    epochs: float
    seen_at_samples: int
    dropped: tuple[str, ...]
    taken: tuple[str, ...]
    dropped_batch: int
    taken_batch: int
    cause: Literal["diverged", "below forecast"]
    because: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MethodChange:
        """Return the change of plain values; raises ``TypeError`` or ``KeyError`` where it is none."""
        return cls(**{**data, "dropped": tuple(data["dropped"]), "taken": tuple(data["taken"])})

    def words(self) -> str:
        """Return the change and its cause in one line."""
        return f"{self.step()}: {self.because}"

    def step(self) -> str:
        """Return the change alone in words."""
        before = f"{method_words(self.dropped)} at global batch {self.dropped_batch}"
        after = f"{method_words(self.taken)} at global batch {self.taken_batch}"
        return f"from {self.samples:,} samples on {after} instead of {before}"


def method_words(names: tuple[str, ...]) -> str:
    """Return methods in words.

    >>> method_words(("linear-lr", "warmup")), method_words(())
    ('linear-lr + warmup', 'no method')
    """
    return " + ".join(names) or "no method"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One logical run, all its attempts together.

    Layout and ``mitigation`` are those in force at the end; ``method_changes`` tells which ran before, ``stages`` every
    layout that trained, by the samples from which it did. Of a run that changed its method the forecast of what it
    spends stands beside what was spent; no row forecast the rest. ``hardware`` is where it ran. ``predicted`` and
    ``actual`` hold the same names (`QUANTITIES`); None where unknown.
    ``actual`` times and costs count every attempt, also those that failed.

    What is learnt of methods rests on the last six fields: the job's reference batch; which way the metric is better,
    and its best value; the methods that no pilot trained with and whose effect was forecast by their cards, with what
    these said; the metric that was forecast for the epoch at which training ended, where a row forecast it; and by how
    much ln of the gap between that and the best value rises with one standard deviation of the cards.
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
    method_changes: tuple[MethodChange, ...] = ()
    stages: tuple[Stage, ...] = ()
    reference_batch: int | None = None
    higher_is_better: bool | None = None
    metric_best: float | None = None
    untried: Mapping[str, MitigationEffect] = field(default_factory=dict)
    expected_end: Interval | None = None
    method_response: float | None = None

    @property
    def resumed(self) -> bool:
        """Whether it took several attempts, so that what it spent is more than the forecast was for."""
        return self.attempt > 1

    def judges(self, quantity: str) -> bool:
        """Return whether the actual value judges the forecast.

        Not where that was made for another machine, and, of what adds up over attempts, not where there were several:
        the forecast is for one that nothing stops.
        """
        if self.resumed and quantity in SPENT:
            return False
        return self.planned_hardware is None or quantity not in HARDWARE_BOUND

    def error_pct(self, quantity: str) -> float | None:
        """Return 100 (predicted - actual) / actual.

        None where either is unknown or the actual value is zero, and for a run that did not finish or took several
        attempts: what it spent is no outcome of what was forecast.
        """
        assert quantity in QUANTITIES, quantity
        if self.status != "FINISHED" or (self.resumed and quantity in SPENT):
            return None
        predicted, actual = self.predicted.get(quantity), self.actual.get(quantity)
        if predicted is None or not actual:
            return None
        return 100.0 * (predicted - actual) / actual
