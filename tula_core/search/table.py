"""Which rows of a plan's table are worth printing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tula_core.records import Plan, Row

MOST_ROWS = 15


def display_rows(plan: Plan) -> list[int]:
    """Return the numbers of at most 15 rows, in the order of the table.

    The choice, the knee, Kneedle's answer, the reference batch on one process and, where nothing is feasible, the least
    violating row come first; then the front, its neighbours (the same processes, one batch size up or down), and the
    fastest row of each layout as far as there is room.
    """
    named = [plan.choice_index, plan.knee, plan.facts.get("kneedle"), plan.facts.get("nearest"), _reference(plan)]
    first = [index for index in named if index is not None]
    centres = list(dict.fromkeys([*first, *_spread(plan.pareto, MOST_ROWS - len(set(first)))]))
    wanted = [*centres, *_neighbours(plan.table, centres), *_fastest_of_layouts(plan.table)]
    return sorted(list(dict.fromkeys(wanted))[:MOST_ROWS])


def _reference(plan: Plan) -> int | None:
    batch = plan.job.recipe.batch_size
    alone = (i for i, r in enumerate(plan.table) if r.candidate.processes == 1 and r.candidate.global_batch == batch)
    return next(alone, None)


def _spread(front: Sequence[int], most: int) -> list[int]:
    # A long front is thinned evenly, its ends kept.
    if len(front) <= most:
        return list(front)
    return [front[round(place * (len(front) - 1) / (most - 1))] for place in range(most)]


def _neighbours(table: Sequence[Row], centres: Sequence[int]) -> Iterator[int]:
    for centre in centres:
        for side in (range(centre - 1, -1, -1), range(centre + 1, len(table))):
            alike = (i for i in side if _kind(table[i]) == _kind(table[centre]))
            yield from itertools.islice(alike, 1)


def _fastest_of_layouts(table: Sequence[Row]) -> list[int]:
    fastest: dict[tuple[int, int], tuple[float, int]] = {}
    for index, row in enumerate(table):
        time = row["time_to_train_s"].value
        if row.feasible and time is not None:
            fastest[_layout(row)] = min(fastest.get(_layout(row), (time, index)), (time, index))
    return [index for _, index in sorted(fastest.values())]


def _kind(row: Row) -> tuple[object, ...]:
    c = row.candidate
    return (*_layout(row), c.precision, c.mitigation[:1])  # a rule of the rate with its warm-up or without


def _layout(row: Row) -> tuple[int, int]:
    return (row.candidate.nodes, row.candidate.processes_per_node)
