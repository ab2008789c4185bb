"""What Prefect's pages show of a plan: the forecast as a table, the choice and the reason as text."""

from __future__ import annotations

from typing import Any

from flows import show, units
from tula_core.records import Plan
from tula_core.records.outcome import LABELS

_SHOWN = ("epochs", "time_to_train_s", "node_hours", "cost_usd", "memory_bytes", "accuracy")


def artifact_key(title: str) -> str:
    """Return ``title`` as Prefect wants its keys: small letters, digits and dashes.

    >>> artifact_key("My job_2")
    'my-job-2'
    """
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in title.lower()).split()) or "job"


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows worth showing with their intervals as text, one mapping per row."""
    from tula_core.search.table import display_rows

    return [_cells(plan, index) for index in display_rows(plan)]


def _cells(plan: Plan, index: int) -> dict[str, Any]:
    row = plan.table[index]
    c = row.candidate
    cells: dict[str, Any] = {
        "row": index,
        "nodes": c.nodes,
        "processes per node": c.processes_per_node,
        "local batch": c.local_batch,
        "accumulation": c.accumulation,
        "global batch": c.global_batch,
        "methods": " + ".join(c.mitigation) or "none",
        "precision": c.precision or plan.job.recipe.precision,
    }
    for name in _SHOWN:
        value, between = units.span(name, row[name], share=show.is_share(plan))
        cells[LABELS[name]] = f"{value} [{between}]" if between else value
    return cells | {"marks": show.marks(plan, index), "infeasible because": row.infeasible_because or ""}


def plan_markdown(plan: Plan) -> str:
    """Return the plan in words: machine, choice, reason and assumptions."""
    choice = "none, nothing is feasible" if plan.choice is None else show.setting(plan.choice)
    lines = [f"# Plan for {plan.job.title}", "", f"**Choice:** {choice}", "", plan.reason, ""]
    if plan.knee is not None:
        lines += [f"**Knee:** row {plan.knee}, {show.setting(plan.table[plan.knee])}", ""]
    lines += [f"{show.machine(plan.hardware)}. Predictor: {plan.predictor}.", ""]
    lines += ["## Assumptions", "", *(f"- {assumption}" for assumption in plan.assumptions)]
    return "\n".join(lines) + "\n"
