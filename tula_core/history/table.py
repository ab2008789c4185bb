"""Predicted against actual, a row per job, and how good the forecasts were over all of them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tula_core.records import Outcome

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = ("step_time_s", "time_to_train_s", "epochs", "accuracy", "memory_bytes")
"""The quantities a row compares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How good the forecasts of one quantity were over the jobs that finished.

    ``coverage`` is the share of actual values inside their 90 % interval.
    """

    jobs: int
    median_abs_error_pct: float
    coverage: float | None


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a flat row per outcome: when, what was run, and per quantity the predicted and actual value and the error.

    ``<quantity>_inside`` says whether the actual value lies in the forecast's interval. Errors are
    100 (predicted - actual) / actual. A run that did not finish has no error: its actual values are what was spent.
    """
    return [_row(outcome) for outcome in outcomes]


def _row(outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {
        "finished_at": outcome.finished_at,
        "job_name": outcome.job_name,
        "job_id": outcome.job_id,
        "status": outcome.status,
        "attempt": outcome.attempt,
        "workload": outcome.workload,
        "hardware": outcome.hardware,
        "predictor": outcome.predictor,
        "choice": choice(outcome),
    }
    for name in QUANTITIES:
        row[f"{name}_predicted"] = outcome.predicted.get(name)
        row[f"{name}_actual"] = outcome.actual.get(name)
        row[f"{name}_error_pct"] = outcome.error_pct(name) if outcome.status == "FINISHED" else None
        row[f"{name}_inside"] = _inside(outcome, name) if outcome.status == "FINISHED" else None
    return row


def choice(outcome: Outcome) -> str:
    """Return how the job was trained in a few characters, nodes x processes x local batch x accumulation.

    The accumulation is left out where it is 1; mitigations follow after a plus.
    """
    numbers = [outcome.nodes, outcome.processes_per_node, outcome.local_batch]
    numbers += [outcome.accumulation] if outcome.accumulation > 1 else []
    return "+".join(["x".join(map(str, numbers)), *outcome.mitigation])


def summary(outcomes: Sequence[Outcome]) -> dict[str, Quality]:
    """Return the quality of the forecasts by quantity, over finished jobs; a quantity without any is absent."""
    finished = [outcome for outcome in outcomes if outcome.status == "FINISHED"]
    found: dict[str, Quality] = {}
    for name in QUANTITIES:
        errors = [abs(error) for outcome in finished if (error := outcome.error_pct(name)) is not None]
        inside = [known for outcome in finished if (known := _inside(outcome, name)) is not None]
        if errors:
            found[name] = Quality(
                jobs=len(errors),
                median_abs_error_pct=statistics.median(errors),
                coverage=sum(inside) / len(inside) if inside else None,
            )
    return found


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """Return the rows as CSV text; unknown is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=_columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(outcomes))
    return buffer.getvalue()


def frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the rows as a pandas table with the same columns, also where there is no outcome."""
    import pandas as pd

    return pd.DataFrame(rows(outcomes), columns=_columns())


def _columns() -> list[str]:
    head = ["finished_at", "job_name", "job_id", "status", "attempt", "workload", "hardware", "predictor", "choice"]
    return head + [f"{name}_{part}" for name in QUANTITIES for part in ("predicted", "actual", "error_pct", "inside")]


def _inside(outcome: Outcome, name: str) -> bool | None:
    low, high, actual = (part.get(name) for part in (outcome.predicted_low, outcome.predicted_high, outcome.actual))
    return None if low is None or high is None or actual is None else low <= actual <= high
