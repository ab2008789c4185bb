"""`Candidate`, `Interval` and `Row`: one way to train, and what is forecast for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUANTITIES = (
    "step_time_s",
    "time_to_train_s",
    "node_hours",
    "cost_usd",
    "energy_j",
    "memory_bytes",
    "epochs",
    "steps",
    "accuracy",
)
"""What is forecast for each candidate and measured for each outcome, in the order of a row's keys."""

PRECISION = "precision"
"""The option of a candidate that names another precision than the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A part of a staged plan, in force from ``from_samples`` training samples on."""

    from_samples: int
    nodes: int
    processes_per_node: int
    local_batch: int
    accumulation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to train. Global batch = nodes x processes per node x local batch x accumulation, in samples."""

    nodes: int
    processes_per_node: int
    local_batch: int
    accumulation: int = 1
    mitigation: tuple[str, ...] = ()
    stages: tuple[Stage, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    power_limit_w: float | None = None

    @property
    def precision(self) -> str | None:
        """The precision where it is another than the recipe's, None where it is the recipe's own."""
        found = self.options.get(PRECISION)
        return None if found is None else str(found)

    @property
    def processes(self) -> int:
        """Number of processes on all nodes."""
        return self.nodes * self.processes_per_node

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step."""
        return self.processes * self.local_batch * self.accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value with a 90 % interval; all three are None where the quantity is unknown."""

    value: float | None
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        """Refuse a non-finite number and a value outside its interval."""
        value, low, high = self.value, self.low, self.high
        if value is None or low is None or high is None:
            assert value is low is high is None, f"partly unknown interval {value}, {low}, {high}"
            return
        # One comparison finds what is not a number, too: this runs for every figure of every row.
        if not -math.inf < low <= value <= high < math.inf:
            assert all(map(math.isfinite, (value, low, high))), f"non-finite interval {value}, {low}, {high}"
            raise AssertionError(f"value outside its interval {value}, {low}, {high}")


UNKNOWN = Interval(value=None, low=None, high=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedPoint:
    """What the metric is expected to be after so many whole epochs, with a 90 % interval."""

    epochs: int
    low: float
    value: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One candidate with its forecast; ``measured`` is False where the step time was extrapolated."""

    candidate: Candidate
    feasible: bool
    infeasible_because: str | None
    measured: bool
    forecast: Mapping[str, Interval]  # by the names in QUANTITIES

    def __getitem__(self, quantity: str) -> Interval:
        """Return the forecast of one quantity, unknown where there is none."""
        assert quantity in QUANTITIES, quantity
        return self.forecast.get(quantity, UNKNOWN)

    def to_dict(self) -> dict[str, Any]:
        """Return the flat row of plan.json."""
        c = self.candidate
        data: dict[str, Any] = {
            "nodes": c.nodes,
            "processes_per_node": c.processes_per_node,
            "local_batch": c.local_batch,
            "accumulation": c.accumulation,
            "global_batch": c.global_batch,
            "mitigation": list(c.mitigation),
            "stages": None if c.stages is None else [_stage_dict(stage) for stage in c.stages],
            "options": dict(c.options),
            "power_limit_w": c.power_limit_w,
            "feasible": self.feasible,
            "infeasible_because": self.infeasible_because,
            "measured": self.measured,
        }
        for name in QUANTITIES:
            interval = self[name]
            data |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Return the row of a flat mapping; raises ``KeyError`` or ``ValueError`` where it is not one."""
        stages = data["stages"]
        candidate = Candidate(
            nodes=data["nodes"],
            processes_per_node=data["processes_per_node"],
            local_batch=data["local_batch"],
            accumulation=data["accumulation"],
            mitigation=tuple(data["mitigation"]),
            stages=None if stages is None else tuple(Stage(**stage) for stage in stages),
            options=dict(data["options"]),
            power_limit_w=data["power_limit_w"],
        )
        if data["global_batch"] != candidate.global_batch:
            raise KeyError(f"global_batch {data['global_batch']} is not nodes x processes x local batch x accumulation")
        forecast = {
            name: Interval(value=data[name], low=data[f"{name}_low"], high=data[f"{name}_high"]) for name in QUANTITIES
        }
        return cls(
            candidate=candidate,
            feasible=data["feasible"],
            infeasible_because=data["infeasible_because"],
            measured=data["measured"],
            forecast=forecast,
        )


def _stage_dict(stage: Stage) -> dict[str, int]:
    return {name: getattr(stage, name) for name in Stage.__slots__}
