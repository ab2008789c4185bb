"""From judged rows to a front, a knee and a choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.models.decision.chances import expected
from tula_core.records import Row
from tula_core.search.constraints import Judged
from tula_core.search.knee import knee_index, kneedle_index
from tula_core.search.pareto import pareto_front

NOISE = 0.03
"""Two forecasts closer than this cannot be told apart, and then a measured one or the smaller batch is taken.

It is below the 5 % within which the choices from two fresh profiles have to agree, because the noise between the two
profiles comes on top of it.
"""
SAME_ACCURACY = 0.005
"""Accuracies closer than this count as equal when two candidates are equally fast."""

Goals = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Row numbers of what was decided; ``nearest`` is the least violating row where nothing is feasible."""

    expense: str
    front: tuple[int, ...]
    knee: int | None
    kneedle: int | None
    choice: int | None
    nearest: int | None


def decide(judged: Sequence[Judged], job: Job, expense: str, higher_is_better: bool) -> Decision:
    """Return the Pareto front of the feasible rows, its knee, and the choice by the job's objective.

    Front and knee are those of the values. The choice weighs intervals: it goes by the expected time and expense, to
    which a forecast that is less sure adds more, and near the knee it prefers what was measured.

    Parameters
    ----------
    judged
        At least one row, in the order of the table.
    expense
        ``cost_usd`` or ``node_hours``.

    Raises
    ------
    InputError
        The objective weighs energy and no feasible row has one.
    """
    rows = [item.row for item in judged]
    feasible = [index for index, row in enumerate(rows) if row.feasible]
    if not feasible:
        nearest = min(range(len(rows)), key=lambda index: _distance(judged[index]))
        return Decision(expense=expense, front=(), knee=None, kneedle=None, choice=None, nearest=nearest)
    preferred = sorted(feasible, key=lambda index: _preference(rows[index], higher_is_better))
    times, spent = (np.array([_value(rows[i], name) for i in preferred]) for name in ("time_to_train_s", expense))
    order = pareto_front(times, spent)
    front = tuple(preferred[place] for place in order)
    knee = front[knee_index(spent[order], times[order])]
    kneedle = kneedle_index(spent[order], times[order])
    if job.objective == "knee":
        choice = _surest_within_noise(rows, feasible, knee, expense, higher_is_better)
    else:
        choice = best_by_weights(rows, preferred, _goals(job, expense))
    return Decision(
        expense=expense,
        front=front,
        knee=knee,
        kneedle=None if kneedle is None else front[kneedle],
        choice=choice,
        nearest=None,
    )


def best_by_weights(rows: Sequence[Row], indices: Sequence[int], goals: Goals) -> int:
    """Return the row with the least weighted geometric mean of expected values; of equal ones the first in ``indices``.

    score = sum_k w_k ln E[x_k], over the largest weight. Dividing a quantity by its best value adds a constant, so that
    the choice depends on no unit and on no range that was searched; one goal alone gives the row where it is least. The
    score of a row depends on no other row: a tighter limit only takes rows away, and so never leads to a better score.

    Parameters
    ----------
    goals
        Weight above zero of each quantity of `QUANTITIES`.
    """
    known = [index for index in indices if all((rows[index][name].value or 0.0) > 0 for name in goals)]
    if not known:
        raise InputError(
            "objective: energy is unknown for every feasible candidate, because no power meter could be read. "
            "Give cluster.power_watts, or choose knee, time or cost."
        )
    largest = max(goals.values())  # weights count by their ratios, and their sum may be no float
    shares = {name: weight / largest for name, weight in goals.items()}

    def score(index: int) -> float:
        return sum(share * math.log(expected(rows[index][name])) for name, share in shares.items())

    return min(known, key=score)


def _goals(job: Job, expense: str) -> Goals:
    quantity = {"time": "time_to_train_s", "cost": expense, "energy": "energy_j"}
    weights = job.objective if isinstance(job.objective, dict) else {job.objective: 1.0}
    return {quantity[goal]: weight for goal, weight in weights.items()}


def _value(row: Row, quantity: str) -> float:
    value = row[quantity].value
    assert value is not None, f"{quantity} of a feasible row is unknown"
    return value


def _preference(row: Row, higher_is_better: bool) -> tuple[float, ...]:
    accuracy = row["accuracy"].value
    worse = math.inf if accuracy is None else -accuracy if higher_is_better else accuracy
    return (worse, *_size(row))


def _size(row: Row) -> tuple[int, ...]:
    c = row.candidate
    # Of equal ones the recipe's own precision: nothing was trained in another.
    return (c.global_batch, c.processes, c.nodes, c.accumulation, c.precision is not None)


def _surest_within_noise(
    rows: Sequence[Row], feasible: Sequence[int], knee: int, expense: str, higher_is_better: bool
) -> int:
    """Return the row that is expected to be as good as the knee: measured rather than not, then the smaller."""
    axes = ("time_to_train_s", expense)
    most = {name: expected(rows[knee][name]) * (1 + NOISE) for name in axes}
    close = [index for index in feasible if all(expected(rows[index][name]) <= most[name] for name in axes)]
    accuracies = {index: rows[index]["accuracy"].value for index in close}
    known = {index: value for index, value in accuracies.items() if value is not None}
    if len(known) == len(close):
        sign = 1 if higher_is_better else -1
        best = max(sign * value for value in known.values())
        close = [index for index in close if sign * known[index] >= best - SAME_ACCURACY]

    def rank(index: int) -> tuple[float, ...]:
        return (not rows[index].measured, *_size(rows[index]), expected(rows[index]["time_to_train_s"]))

    return min(close, key=rank)


def _distance(item: Judged) -> tuple[float, ...]:
    time = item.row["time_to_train_s"].value
    return (item.is_hopeless, item.excess, len(item.violations), math.inf if time is None else time, *_size(item.row))
