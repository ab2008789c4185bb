"""What the values of plan.json must be, so that a file edited by hand is refused by name and not met in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class _Stage(_Part):
    from_samples: Annotated[int, Field(ge=0)]
    nodes: Count
    processes_per_node: Count
    local_batch: Count
    accumulation: Count


class _Options(_Part):
    precision: Literal["fp32", "bf16", "fp16"] | None = None


class _Row(_Part):
    # Quantities come as extra keys; `Interval` checks them.
    nodes: Count
    processes_per_node: Count
    local_batch: Count
    accumulation: Count
    global_batch: Count
    mitigation: list[str]
    stages: list[_Stage] | None
    options: _Options
    power_limit_w: float | None
    feasible: bool
    infeasible_because: str | None
    measured: bool


class _Choice(_Row):
    row: Annotated[int, Field(ge=0)] | None = None


class _WhatIf(_Part):
    name: str
    choice: _Row | None
    reason: str
    assumptions: list[str]


class _Hardware(_Part):
    fingerprint: str


class _File(_Part):
    job: dict[str, Any]
    hardware: _Hardware
    predictor: str
    probe: dict[str, Any]
    table: list[_Row]
    pareto: list[int]
    knee: int | None
    choice: _Choice | None
    reason: str
    assumptions: list[str]
    facts: dict[str, Any] = {}
    what_if: list[_WhatIf] = []


def check_plan_file(data: Mapping[str, Any]) -> None:
    """Check the kind and range of each value of plan.json.

    Raises
    ------
    ValueError
        A field is missing, or of the wrong kind or out of range.
    """
    _File.model_validate(data)
    rows = range(len(data["table"]))
    for name, numbers in (("pareto", data["pareto"]), ("knee", [data["knee"]])):
        absent = [number for number in numbers if number is not None and number not in rows]
        if absent:
            raise ValueError(f"{name} names row {absent[0]}, the table has {len(rows)} rows")
