"""The packages of methods that were compared at the chosen batch, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows import units
from tula_core.records import Plan
from tula_core.records.candidate import Interval


def method_lines(plan: Plan, *, share: bool = True) -> Iterator[str]:
    """Yield a head and each package with accuracy, time and what became of it; nothing where there was no choice."""
    compared: list[Mapping[str, Any]] = plan.facts.get("methods") or []
    if plan.choice is None or len(compared) < 2:
        return
    yield f"Methods compared at global batch {plan.choice.candidate.global_batch}, with 90 % intervals"
    for row in compared:
        accuracy = _figure(row, "accuracy", share)
        verdict = "chosen" if row["chosen"] else "feasible" if row["feasible"] else str(row["infeasible_because"])
        names = " + ".join(row["mitigation"]) or "none"
        yield f"- {names}: accuracy {accuracy}, time {_figure(row, 'time_to_train_s', share)}; {verdict}"


def _figure(row: Mapping[str, Any], name: str, share: bool) -> str:
    interval = Interval(value=row[name], low=row[f"{name}_low"], high=row[f"{name}_high"])
    value, between = units.span(name, interval, share=share)
    return f"{value} ({between})" if between else value
