"""Why a plan chooses what it chooses, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tula_core.job import Job
from tula_core.models.decision.chances import expected
from tula_core.records import Hardware, Row, figures
from tula_core.search import words
from tula_core.search.assurance import extrapolation, kept_limits
from tula_core.search.constraints import Judged
from tula_core.search.knee import LEAST_SAVING
from tula_core.search.objective import Decision

_SAME = 5e-4  # a share that would be shown as 0.0 %


def explain(judged: Sequence[Judged], decision: Decision, job: Job, hardware: Hardware) -> str:
    """Return the reason: why this row, how surely it keeps the limits, what the next best would cost or save.

    Parameters
    ----------
    judged
        The rows in the order of the table, numbered as in ``decision``.
    """
    if decision.choice is None:
        assert decision.nearest is not None
        return _why_none(judged[decision.nearest], len(judged))
    rows = [item.row for item in judged]
    chosen = rows[decision.choice]
    sentences = [
        _why_this(rows, decision, job),
        kept_limits(chosen, job.constraints),
        _neighbour(rows, decision, job),
        _scaling(rows, decision, job),
        extrapolation(chosen, job, hardware),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _why_none(nearest: Judged, count: int) -> str:
    candidate = words.describe(nearest.row.candidate)
    remedies = dict.fromkeys(violation.remedy for violation in nearest.violations)
    start = f"None of the {count} candidates is feasible; the least violating one is"
    return (
        f"{start if count > 1 else 'The only candidate is not feasible,'} {candidate}: "
        f"{nearest.row.infeasible_because}. {'. '.join(remedies)}."
    )


def _why_this(rows: Sequence[Row], decision: Decision, job: Job) -> str:
    assert decision.choice is not None
    row = rows[decision.choice]
    count = sum(other.feasible for other in rows)
    takes = f"takes {words.time_with_interval(row)} and {_spent(row, decision.expense)}"
    start = f"{_capital(words.describe(row.candidate))} {takes}"
    if count == 1:
        return f"{start}; it is the only feasible candidate."
    if isinstance(job.objective, dict):
        weights = " and ".join(f"{goal} {weight:g}" for goal, weight in job.objective.items())
        other = _better_and_less_sure(rows, decision, [goal for goal, weight in job.objective.items() if weight > 0])
        return f"{start}: the best expected of {count} feasible candidates by the weights {weights}{other}."
    if job.objective != "knee":
        least = {"time": "time", "cost": _axis(decision), "energy": "energy"}[job.objective]
        quantity = _quantity(decision, job.objective)
        mean, other = _mean(row, quantity), _less_sure(rows, decision, quantity)
        return f"{start}: the least expected {least} of {count} feasible candidates{mean}{other}."
    return f"{start}: {_why_knee(rows, decision)}{_kneedle(rows, decision)}."


def _why_knee(rows: Sequence[Row], decision: Decision) -> str:
    assert decision.knee is not None and decision.choice is not None
    least, axis = words.percent(LEAST_SAVING), _axis(decision)
    if decision.choice != decision.knee:
        knee = rows[decision.knee]
        return (
            f"as good as the knee, {words.describe(knee.candidate)} at {words.time_with_interval(knee)}, "
            f"within the noise of the forecast, and {_advantage(rows[decision.choice], knee)}"
        )
    if len(decision.front) == 1:
        return f"both the fastest and the cheapest of {sum(row.feasible for row in rows)} feasible candidates"
    if decision.knee == decision.front[-1]:
        return f"the fastest, and every doubling of {axis} up to it saves at least {least} of the time"
    return f"the knee, from where doubling the {axis} saves less than {least} of the time"


def _advantage(row: Row, knee: Row) -> str:
    if row.measured and not knee.measured:
        return "measured"
    return "smaller" if row.candidate.global_batch < knee.candidate.global_batch else "to be preferred otherwise"


def _quantity(decision: Decision, goal: str) -> str:
    return decision.expense if goal == "cost" else {"time": "time_to_train_s", "energy": "energy_j"}[goal]


def _mean(row: Row, quantity: str) -> str:
    """Return the mean where it is another number than the likely value that the table has."""
    mean, likely = (figures.text(quantity, amount) for amount in (expected(row[quantity]), row[quantity].value))
    return "" if mean == likely else f", {mean} in the mean beside the likely {likely}"


def _less_sure(rows: Sequence[Row], decision: Decision, quantity: str) -> str:
    """Return the row that has a lower value of the goal and yet is expected to have a higher one, in brackets."""
    assert decision.choice is not None
    other = min(
        _feasible(rows, lambda row: row[quantity].value is not None), key=lambda row: row[quantity].value or 0.0
    )
    if (other[quantity].value or 0.0) >= (rows[decision.choice][quantity].value or 0.0):
        return ""
    return _said_less_sure(other)


def _better_and_less_sure(rows: Sequence[Row], decision: Decision, goals: Iterable[str]) -> str:
    """Return the quickest row that is likely no worse in any goal and better in one, in brackets."""
    assert decision.choice is not None
    quantities = [_quantity(decision, goal) for goal in goals]
    own = [rows[decision.choice][name].value or 0.0 for name in quantities]
    better = []
    for row in _feasible(rows, lambda row: all((row[name].value or 0.0) > 0 for name in quantities)):
        values = [row[name].value or 0.0 for name in quantities]
        if values != own and all(value <= limit for value, limit in zip(values, own, strict=True)):
            better.append(row)
    return _said_less_sure(min(better, key=lambda row: row[quantities[0]].value or 0.0)) if better else ""


def _said_less_sure(other: Row) -> str:
    return (
        f" ({words.describe(other.candidate)} may be better, and is so much less sure that it is expected to be worse)"
    )


def _kneedle(rows: Sequence[Row], decision: Decision) -> str:
    if decision.kneedle is None or decision.kneedle in (decision.choice, decision.knee):
        return ""
    other = rows[decision.kneedle]
    return f" (Kneedle would take {words.describe(other.candidate)} at {words.time_with_interval(other)})"


def _neighbour(rows: Sequence[Row], decision: Decision, job: Job) -> str:
    assert decision.choice is not None
    row = rows[decision.choice]
    faster = [i for i in decision.front if _time(rows[i]) < _time(row) and i != decision.choice]
    cheaper = [i for i in decision.front if _spend(rows[i], decision) < _spend(row, decision) and i != decision.choice]
    if job.objective == "knee" and decision.choice != decision.knee:
        return ""  # the sentence before has named the knee beside the choice
    if faster:
        other = rows[faster[0]]
        saved, added = 1 - _time(other) / _time(row), _spend(other, decision) / _spend(row, decision) - 1
        return (
            f"The next faster, {words.describe(other.candidate)}, would save {words.percent(saved)} of the time "
            f"{change(added, decision)}."
        )
    if cheaper:
        other = rows[cheaper[-1]]
        saved, added = 1 - _spend(other, decision) / _spend(row, decision), _time(other) / _time(row) - 1
        return (
            f"The next cheaper, {words.describe(other.candidate)}, would save {words.percent(saved)} of the "
            f"{_axis(decision)} and take {words.percent(added)} longer."
        )
    return _second_best(rows, decision)


def change(added: float, decision: Decision) -> str:
    """Return what a faster row takes more of, or saves too where the choice was preferred for being surer."""
    if abs(added) < _SAME:
        return f"at the same {_axis(decision)}"
    if added >= 0:
        return f"for {words.percent(added)} more {_axis(decision)}"
    return f"and {words.percent(-added)} of the {_axis(decision)}"


def _second_best(rows: Sequence[Row], decision: Decision) -> str:
    assert decision.choice is not None
    row = rows[decision.choice]
    limit = row.candidate.power_limit_w
    alike = _feasible(rows, lambda r: _layout(r) == _layout(row) and r.candidate.power_limit_w == limit)
    same = [r for r in alike if r is not row]
    if not same:
        return ""
    other = min(same, key=_time)
    longer = _time(other) / _time(row) - 1
    change = f"take {words.percent(longer)} longer" if longer >= 0 else f"save {words.percent(-longer)} of the time"
    return f"With global batch {other.candidate.global_batch} instead it would {change}."


def _scaling(rows: Sequence[Row], decision: Decision, job: Job) -> str:
    assert decision.choice is not None
    row = rows[decision.choice]
    processes = row.candidate.processes
    more = _feasible(rows, lambda r: r.candidate.processes > processes)
    if more and (best := min(more, key=_time)) and _time(best) >= _time(row):
        slower = _time(best) / _time(row) - 1
        advice = "Do not scale" if processes == 1 else "Do not scale further"
        return f"{advice}: the fastest with more processes, {words.describe(best.candidate)}, is {_slower(slower)}."
    alone = _feasible(rows, lambda r: r.candidate.processes == 1)
    if processes > 1 and alone:
        longer = _time(min(alone, key=_time)) / _time(row) - 1
        return f"One process would be {_slower(longer)}." if longer >= 0 else ""
    if processes > 1:
        return "No candidate with one process keeps every limit."
    return ""


def _feasible(rows: Sequence[Row], wanted: Callable[[Row], bool]) -> list[Row]:
    return [row for row in rows if row.feasible and wanted(row)]


def _time(row: Row) -> float:
    value = row["time_to_train_s"].value
    assert value is not None
    return value


def _spend(row: Row, decision: Decision) -> float:
    value = row[decision.expense].value
    assert value is not None
    return value


def _spent(row: Row, expense: str) -> str:
    value = row[expense].value
    assert value is not None
    return words.expense(value, expense) if expense == "node_hours" else f"costs {words.expense(value, expense)}"


def _axis(decision: Decision) -> str:
    return words.EXPENSE_NAMES[decision.expense]


def _layout(row: Row) -> tuple[int, int]:
    return (row.candidate.nodes, row.candidate.processes_per_node)


def _slower(share: float) -> str:
    if share >= 1:
        return f"{1 + share:.1f} times as slow"
    return f"{words.percent(share)} slower" if share > 0 else "no faster"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
