"""The outcome of a run: what was heard of it beside what was forecast."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tula_core.mitigations import MITIGATIONS, Packages
from tula_core.models.cost import node_hours
from tula_core.records import QUANTITIES, Candidate, CurvePoint, Interval, MitigationEffect, Outcome, Plan, Row, Stage
from tula_core.records.candidate import UNKNOWN
from tula_core.records.outcome import SPENT
from tula_core.tracking.spent import attempt_folder, planned_layout
from tula_core.training.attempt import Attempt
from tula_core.training.fallback.changes import Course
from tula_core.training.fallback.expectation import Expectation
from tula_core.training.hearing import Hearing
from tula_core.training.metering import energy_source, with_energy

Status = Literal["FINISHED", "FAILED", "KILLED"]

_OF_A_STEP = ("step_time_s", "memory_bytes")


def outcome_of(
    hearing: Hearing,
    course: Course,
    status: Status,
    error: BaseException | None,
    final: Mapping[str, Any],
    by_nodes: Mapping[int, float],
    spans_s: Sequence[float],
) -> Outcome:
    """Return the outcome of all attempts so far.

    Parameters
    ----------
    hearing, course
        What was heard, and which rows trained.
    error
        What ended the attempt, None where it came to its end.
    final
        The result of the workers, empty where there was none.
    by_nodes
        Seconds of all attempts by how many nodes they had.
    spans_s
        Seconds of this attempt's launches before its last.
    """
    attempt, plan = hearing.attempt, hearing.attempt.plan
    candidate = course.row.candidate
    curve = tuple(CurvePoint(**point) for point in hearing.curve)
    # Of a run that went on at another row no row forecast the whole; what a change of method spends was forecast.
    known = SPENT if course.changes else _OF_A_STEP if _changed_layout(attempt) else QUANTITIES
    forecast = {name: attempt.row[name] if name in known else UNKNOWN for name in QUANTITIES}
    reached = bool(final.get("target_reached")) if status == "FINISHED" else False
    return Outcome(
        schema_version=Outcome.SCHEMA_VERSION,
        job_id=attempt.job_id,
        job_hash=plan.job.digest,
        job_name=plan.job.title,
        workload=str(plan.facts.get("workload", plan.job.title)),
        hardware=hearing.hardware or str(plan.hardware["fingerprint"]),
        predictor=plan.predictor,
        attempt=attempt.number,
        status=status,
        failure=None if error is None else (str(error) or type(error).__name__),
        nodes=candidate.nodes,
        processes_per_node=candidate.processes_per_node,
        local_batch=candidate.local_batch,
        accumulation=candidate.accumulation,
        mitigation=candidate.mitigation,
        precision=candidate.precision,
        learning_rate=final.get("learning_rate", hearing.peak_learning_rate),
        learning_rate_reductions=final.get("reductions", hearing.reductions),
        target_reached=None if plan.job.target is None else reached,
        predicted={name: interval.value for name, interval in forecast.items()},
        predicted_low={name: interval.low for name, interval in forecast.items()},
        predicted_high={name: interval.high for name, interval in forecast.items()},
        actual=with_energy(_actual(hearing, final, by_nodes), attempt, final, spans_s),
        curve=curve,
        run_folder=str(attempt.folder),
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        planned_hardware=str(plan.hardware["fingerprint"]) if hearing.elsewhere else None,
        energy_source=energy_source(final),
        method_changes=course.changes,
        stages=tuple(Stage(**stage) for stage in final.get("stages", hearing.stages)),
        reference_batch=plan.job.recipe.batch_size,
        higher_is_better=better if isinstance(better := plan.facts.get("higher_is_better"), bool) else None,
        metric_best=_number(plan.facts.get("metric_best")),
        untried=_untried(plan, candidate),
        expected_end=None if known is not QUANTITIES else _expected_end(attempt, curve),
        method_response=_response(plan, attempt.row),
    )


def _untried(plan: Plan, candidate: Candidate) -> dict[str, MitigationEffect]:
    """Return the methods that the pilots trained without, with the cards by which their effect was forecast."""
    if plan.job.mitigation != "auto":
        return {}
    pilots = Packages.auto(plan.job.recipe.optimizer).pilots
    names = [name for name in candidate.mitigation if name not in pilots]
    cards = {name: MITIGATIONS[name].effect for name in names}
    return {name: card for name, card in cards.items() if card is not None}


def _response(plan: Plan, row: Row) -> float | None:
    """Return how the forecast of a row answers to cards, None where the plan does not say; it may have been edited."""
    found = plan.facts.get("method_response")
    for number, response in found.items() if isinstance(found, Mapping) else ():
        if str(number).isdecimal() and row in plan.table[int(number) : int(number) + 1]:
            return _number(response)
    return None


def _number(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _expected_end(attempt: Attempt, curve: Sequence[CurvePoint]) -> Interval | None:
    """Return the metric that was forecast for the last evaluation, None where no row forecast it."""
    plan, row = attempt.plan, attempt.row
    if plan.job.target is None and row["accuracy"].value is not None:
        return row["accuracy"]
    if row != plan.choice or not curve:  # of the choice alone it is known what each epoch should show
        return None
    expected = Expectation.of(
        plan.facts.get("expected_curve"),
        higher_is_better=bool(plan.facts.get("higher_is_better", True)),
        warmup_epochs=0.0,
        last=plan.job.recipe.epochs,
    )
    return None if expected is None else expected.at(curve[-1].epochs)


def _changed_layout(attempt: Attempt) -> bool:
    folders = (attempt_folder(attempt.folder, number) for number in range(1, attempt.number + 1))
    return len({layout for folder in folders if (layout := planned_layout(folder)) is not None}) > 1


def _actual(hearing: Hearing, final: Mapping[str, Any], by_nodes: Mapping[int, float]) -> dict[str, float | None]:
    plan = hearing.attempt.plan
    nodes, seconds = np.array(list(by_nodes)), np.array(list(by_nodes.values()))
    samples = final.get("samples", hearing.samples)
    metric = hearing.curve[-1]["metric"] if hearing.curve else None
    return {
        "step_time_s": final.get("step_time_s"),
        "time_to_train_s": float(seconds.sum()),
        "node_hours": float(node_hours(nodes, seconds).sum()),
        "cost_usd": None,  # this and the next are of `with_energy`
        "energy_j": None,
        "memory_bytes": final.get("memory_bytes"),
        "epochs": samples / int(plan.facts["train_samples"]),
        "steps": final.get("steps", hearing.steps),
        "accuracy": metric if metric is not None and math.isfinite(metric) else None,
    }
