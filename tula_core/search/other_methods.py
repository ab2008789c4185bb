"""The row that a run goes on with when the methods of its own have proved wrong."""

from __future__ import annotations

from collections.abc import Sequence

from tula_core.job import Job
from tula_core.mitigations import MITIGATIONS
from tula_core.records import Candidate, Plan, Row
from tula_core.search.constraints import Judged
from tula_core.search.objective import decide

_NEEDED = ("step_time_s", "time_to_train_s", "node_hours")


def next_best(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
    """Return the best row of the plan's table by its job's objective, None where none is left.

    Those are looked at that are feasible, train with other methods than every candidate in ``tried``, need no more
    nodes and processes than ``row``, and share its precision and power limit: nothing else has to be set up for them.
    """
    reference = plan.job.recipe.batch_size
    methods = {_acting(candidate, reference) for candidate in tried}
    needed = _needed(plan.job)
    left = [
        other
        for other in plan.table
        if _acting(other.candidate, reference) not in methods and _fits(other, row) and _known(other, needed)
    ]
    if not left:
        return None
    priced = all((other["cost_usd"].value or 0.0) > 0 for other in left)
    decision = decide(
        [Judged(row=other, violations=()) for other in left],
        plan.job,
        "cost_usd" if priced else "node_hours",
        bool(plan.facts.get("higher_is_better", True)),
    )
    return None if decision.choice is None else left[decision.choice]


def _acting(candidate: Candidate, reference_batch: int) -> frozenset[str]:
    """Return the methods that do something: up to the reference batch a rule of the rate is no mitigation."""
    plain = candidate.global_batch <= reference_batch
    return frozenset(name for name in candidate.mitigation if not plain or MITIGATIONS[name].entry is not None)


def _needed(job: Job) -> tuple[str, ...]:
    """Return the quantities without which a row cannot be compared."""
    goals = job.objective if isinstance(job.objective, dict) else {job.objective: 1.0}
    return (*_NEEDED, "energy_j") if "energy" in goals else _NEEDED


def _known(row: Row, quantities: Sequence[str]) -> bool:
    return all((row[name].value or 0.0) > 0 for name in quantities)


def _fits(other: Row, row: Row) -> bool:
    mine, theirs = row.candidate, other.candidate
    return (
        other.feasible
        and theirs.nodes <= mine.nodes
        and theirs.processes <= mine.processes
        and dict(theirs.options) == dict(mine.options)
        and theirs.power_limit_w == mine.power_limit_w
    )
