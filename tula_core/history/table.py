"""The history as CSV, a row per logical run, and how good the forecasts were over all of them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tula_core.records import QUANTITIES, Outcome, Stage

_IDENTITY = (
    "finished_at",
    "job_id",
    "job_name",
    "job_hash",
    "workload",
    "hardware",
    "planned_hardware",
    "predictor",
    "status",
    "attempt",
    "nodes",
    "processes_per_node",
    "local_batch",
    "accumulation",
)
_RUN = ("precision", "learning_rate", "learning_rate_reductions", "target_reached", "failure")


def columns() -> list[str]:
    """Return the names of the columns, in order."""
    kinds = ("predicted", "predicted_low", "predicted_high", "actual", "error_pct")
    return [*_IDENTITY, "mitigation", "stages", *_RUN, *(f"{kind}_{name}" for name in QUANTITIES for kind in kinds)]


def to_csv(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes as CSV with a header; what is unknown is an empty cell.

    ``stages`` are the layouts that trained, each as the samples from which it did and nodes x processes per node x
    local batch x accumulation, such as ``0:1x1x64x1 8512:1x2x64x2``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns())
    for outcome in outcomes:
        cells: list[object] = [getattr(outcome, name) for name in _IDENTITY]
        cells += ["+".join(outcome.mitigation), " ".join(map(_stage, outcome.stages))]
        cells += [getattr(outcome, name) for name in _RUN]
        for name in QUANTITIES:
            sides = (outcome.predicted, outcome.predicted_low, outcome.predicted_high, outcome.actual)
            cells += [*(side.get(name) for side in sides), outcome.error_pct(name)]
        writer.writerow(cells)
    return text.getvalue()


def _stage(stage: Stage) -> str:
    layout = (stage.nodes, stage.processes_per_node, stage.local_batch, stage.accumulation)
    return f"{stage.from_samples}:{'x'.join(map(str, layout))}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How good the forecasts of one quantity were over the jobs that finished.

    ``coverage`` is the share of actual values inside their 90 % interval.
    """

    jobs: int
    median_abs_error_pct: float
    coverage: float | None


def summary(outcomes: Sequence[Outcome]) -> dict[str, Quality]:
    """Return the quality of the forecasts by quantity, over finished jobs; a quantity without any is absent."""
    finished = [outcome for outcome in outcomes if outcome.status == "FINISHED"]
    found: dict[str, Quality] = {}
    for name in QUANTITIES:
        judging = [outcome for outcome in finished if outcome.judges(name)]
        errors = [abs(error) for outcome in judging if (error := outcome.error_pct(name)) is not None]
        inside = [known for outcome in judging if (known := _inside(outcome, name)) is not None]
        if errors:
            found[name] = Quality(
                jobs=len(errors),
                median_abs_error_pct=statistics.median(errors),
                coverage=sum(inside) / len(inside) if inside else None,
            )
    return found


def _inside(outcome: Outcome, name: str) -> bool | None:
    low, high, actual = (part.get(name) for part in (outcome.predicted_low, outcome.predicted_high, outcome.actual))
    return None if low is None or high is None or actual is None else low <= actual <= high
