"""`Plan`: the forecast table, its Pareto front and knee, the choice and the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tula_core.job import Job
from tula_core.records.candidate import Row
from tula_core.records.plan_file import check_plan_file
from tula_core.records.what_if import WhatIf


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProbe:
    """Time and cost of the measuring, not part of the rows, and why it ended."""

    seconds: float
    cost_usd: float | None
    cached: bool
    stopped_because: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All candidates with their forecasts, which of them are worth choosing, the choice and why.

    ``pareto`` and ``knee`` are row numbers, ``choice`` is a row number too; in plan.json it is the whole row.
    """

    SCHEMA_VERSION: ClassVar[int] = 1

    job: Job  # resolved: every recipe field set
    hardware: Mapping[str, Any]
    predictor: str
    probe: PlanProbe
    table: tuple[Row, ...]
    pareto: tuple[int, ...]
    knee: int | None
    choice_index: int | None
    reason: str
    assumptions: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    what_if: tuple[WhatIf, ...] = ()

    @property
    def choice(self) -> Row | None:
        """The chosen row, None where nothing is feasible."""
        return None if self.choice_index is None else self.table[self.choice_index]

    @property
    def digest(self) -> str:
        """Sixteen hex digits over the plan's JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return the text of plan.json."""
        from tula_core.records.codec import to_json

        return to_json(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of plan.json as plain values."""
        choice = self.choice
        return {
            "schema_version": self.SCHEMA_VERSION,
            "job": self.job.to_dict(),
            "hardware": dict(self.hardware),
            "predictor": self.predictor,
            "probe": {name: getattr(self.probe, name) for name in PlanProbe.__slots__},
            "table": [row.to_dict() for row in self.table],
            "pareto": list(self.pareto),
            "knee": self.knee,
            "choice": None if choice is None else {"row": self.choice_index, **choice.to_dict()},
            "reason": self.reason,
            "assumptions": list(self.assumptions),
            "facts": dict(self.facts),
            "what_if": [answer.to_dict() for answer in self.what_if],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan in plain values; raises `InputError`, ``KeyError`` or ``ValueError`` where it is none."""
        check_plan_file(data)
        table = tuple(Row.from_dict(row) for row in data["table"])
        index = None
        if data["choice"] is not None:
            chosen = Row.from_dict(data["choice"])
            named = data["choice"].get("row")
            index = named if named is not None else next((i for i, row in enumerate(table) if row == chosen), -1)
            if not 0 <= index < len(table) or table[index] != chosen:
                raise KeyError("choice is not the row of the table that it names")
        return cls(
            job=Job.from_mapping(data["job"], source="plan: job"),
            hardware=data["hardware"],
            predictor=data["predictor"],
            probe=PlanProbe(**data["probe"]),
            table=table,
            pareto=tuple(data["pareto"]),
            knee=data["knee"],
            choice_index=index,
            reason=data["reason"],
            assumptions=tuple(data["assumptions"]),
            facts=data.get("facts", {}),
            what_if=tuple(WhatIf.from_dict(answer) for answer in data.get("what_if", ())),
        )
