"""The history as CSV: one row per logical run, every quantity predicted and actual."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from tula_core.records import Outcome
from tula_core.records.candidate import QUANTITIES

_IDENTITY = (
    "finished_at",
    "job_id",
    "job_name",
    "job_hash",
    "workload",
    "hardware",
    "predictor",
    "status",
    "attempt",
    "nodes",
    "processes_per_node",
    "local_batch",
    "accumulation",
)
_RUN = ("learning_rate", "learning_rate_reductions", "target_reached", "failure")


def columns() -> list[str]:
    """Return the names of the columns, in order."""
    kinds = ("predicted", "predicted_low", "predicted_high", "actual", "error_pct")
    return [*_IDENTITY, "mitigation", *_RUN, *(f"{kind}_{name}" for name in QUANTITIES for kind in kinds)]


def to_csv(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes as CSV with a header; what is unknown is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns())
    for outcome in outcomes:
        cells: list[object] = [getattr(outcome, name) for name in _IDENTITY]
        cells += ["+".join(outcome.mitigation), *(getattr(outcome, name) for name in _RUN)]
        for name in QUANTITIES:
            sides = (outcome.predicted, outcome.predicted_low, outcome.predicted_high, outcome.actual)
            cells += [*(side.get(name) for side in sides), outcome.error_pct(name)]
        writer.writerow(cells)
    return text.getvalue()
