"""Node types that were not measured beside the measured choice, and what is taken for granted of them."""

from __future__ import annotations

from collections.abc import Iterator

from flows import units
from tula_core.records import Plan, WhatIf
from tula_core.records.candidate import Row

_HEAD = "Other node types, not measured: forecast from their facts, with 90 % intervals"


def what_if_lines(plan: Plan) -> Iterator[str]:
    """Yield a head, the measured choice and each node type with layout, batch, time and cost; nothing without any.

    A line below each says what is assumed of it; what is assumed of all of several is said once, at the end.
    """
    if not plan.what_if:
        return
    yield _HEAD
    if plan.choice is not None:
        yield f"- this machine: {_figures(plan.choice)}"
    first, *others = plan.what_if
    shared = [text for text in first.assumptions if others and all(text in other.assumptions for other in others)]
    for answer in plan.what_if:
        yield f"- {answer.name}: {_answer(answer)}"
        own = [text for text in answer.assumptions if text not in shared]
        if own:
            yield f"  assumed: {'; '.join(own)}"
    if shared:
        yield f"  assumed of all: {'; '.join(shared)}"


def _answer(answer: WhatIf) -> str:
    if answer.choice is None:
        return f"nothing is feasible. {answer.reason}"
    return f"{_figures(answer.choice)}; not measured, from its facts"


def _figures(row: Row) -> str:
    c = row.candidate
    spent = "node_hours" if row["cost_usd"].value is None else "cost_usd"
    named = (("time", "time_to_train_s"), ("cost" if spent == "cost_usd" else "node time", spent))
    figures = [f"{name} {value} ({between})" for name, key in named for value, between in [units.span(key, row[key])]]
    return f"{c.nodes} x {c.processes_per_node}, global batch {c.global_batch}, {', '.join(figures)}"
