"""What training goes on with when the methods of a row have proved wrong: the next best row, or none of the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tula_core.engine.shares import Layout
from tula_core.mitigations import MITIGATIONS
from tula_core.records import Candidate, Plan, Row
from tula_core.training.stages import layout_for

NextBest = Callable[[Plan, Row, Sequence[Candidate]], Row | None]
"""Gives the best row of a plan with other methods than those tried, None where it has none."""

_UNFORECAST = ("accuracy", "steps")  # of a run that takes over in the middle


def no_other(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
    """Return None: no row of the table is tried."""
    return None


def next_row(plan: Plan, row: Row, tried: Sequence[Candidate], next_best: NextBest) -> Row | None:
    """Return the row to go on with instead of ``row``; None where nothing is left that would do better.

    A row that trains as the recipe does is kept: no method for larger batches makes up for what fails there.

    Parameters
    ----------
    tried
        Every candidate that has trained, ``row``'s own among them.
    next_best
        Looks in the plan's table; where it finds nothing the recipe's reference batch without methods is taken.
    """
    if _is_plain(row.candidate, _reference_layout(plan, row).global_batch):
        return None
    return next_best(plan, row, tried) or reference_row(plan, row, tried)


def reference_row(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
    """Return the recipe's reference batch on the processes of ``row``, without methods; None where that was tried.

    Its local batch is at most that of ``row``, so that it needs no more memory. What is forecast of it is what the
    table has for the same layout.
    """
    candidate, layout = row.candidate, _reference_layout(plan, row)
    if any(_is_plain(one, layout.global_batch) for one in tried):
        return None
    plain = replace(
        candidate, mitigation=(), stages=None, local_batch=layout.local_batch, accumulation=layout.accumulation
    )
    alike = next((other for other in plan.table if _layout(other.candidate) == _layout(plain)), None)
    known = {} if alike is None else {name: v for name, v in alike.forecast.items() if name not in _UNFORECAST}
    return Row(candidate=plain, feasible=True, infeasible_because=None, measured=False, forecast=known)


def _reference_layout(plan: Plan, row: Row) -> Layout:
    return layout_for(plan.job.recipe.batch_size, row.candidate.processes, row.candidate.local_batch)


def _is_plain(candidate: Candidate, batch: int) -> bool:
    """Return whether a candidate trains as the recipe does: at most its batch, and no method that acts there."""
    acting = [name for name in candidate.mitigation if MITIGATIONS[name].entry is not None]
    return candidate.global_batch <= batch and not acting


def _layout(candidate: Candidate) -> tuple[object, ...]:
    return (
        candidate.nodes,
        candidate.processes_per_node,
        candidate.local_batch,
        candidate.accumulation,
        candidate.stages,
        candidate.precision,
        candidate.power_limit_w,
    )
