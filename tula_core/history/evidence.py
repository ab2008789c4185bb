"""What an outcome says about the uncorrected forecast: ln(actual / predicted), by quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tula_core.records import Corrections, Outcome

QUANTITIES = ("step_time_s", "time_to_train_s", "epochs", "accuracy", "memory_bytes")
"""The quantities whose forecast is corrected; the others follow from them."""

_PASSED_ON = {"step_time_s", "epochs"}  # corrections that enter a training time which has none of its own

Lookup = Callable[[str], Corrections | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The log ratios by quantity and workload, and how many outcomes gave none and why."""

    log_ratios: dict[str, dict[str, tuple[float, ...]]]  # by quantity, then by workload
    outcomes: int
    failed: int
    unattributed: int  # made by a version whose corrections cannot be had
    elsewhere: int = 0  # on other hardware than the plan's
    apart: int = 0  # trained in another precision than the recipe's
    changed: int = 0  # their methods proved wrong and others took over

    @property
    def jobs(self) -> list[str]:
        """The kinds of job, that is the workloads, that gave evidence, sorted."""
        return sorted({job for by_job in self.log_ratios.values() for job in by_job})


def gather(outcomes: Iterable[Outcome], lookup: Lookup) -> Evidence:
    """Return the evidence in outcomes, with the corrections of the version that made each forecast undone.

    A plan's forecast is the model's, multiplied by exp(bias of its version); so
    ln(actual / uncorrected) = ln(actual / predicted) + bias. Without this step a promoted correction would be learnt
    away again by the outcomes that it made right.

    Failed and killed runs are counted and give no ratio: what they took is a lower bound of what they would have taken.
    A run of several attempts gives none for its training time, which holds what the lost attempts took; nor does one
    whose training time was forecast from a corrected step time or number of epochs alone, since that cannot be undone.
    A run on other hardware than its plan's gives none for what depends on the hardware. Runs in another precision than
    their recipe's are counted apart: what their forecasts missed is first of all the ratio of the precisions, and must
    not move the forecasts of other jobs. Runs that changed their methods are counted apart, too: what one method
    reached and took says nothing of the other's forecast.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in QUANTITIES}
    used = failed = unattributed = elsewhere = apart = changed = 0
    for outcome in sorted(outcomes, key=lambda one: one.job_id):  # so that sums do not depend on the order given
        if outcome.status != "FINISHED":
            failed += 1
            continue
        if outcome.precision is not None:
            apart += 1
            continue
        if outcome.method_changes:
            changed += 1
            continue
        version = lookup(outcome.predictor)
        if version is None:
            unattributed += 1
            continue
        ratios = {name: _log_ratio(outcome, name, version) for name in QUANTITIES}
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        used += bool(known)
        elsewhere += outcome.planned_hardware is not None
        for name, ratio in known.items():
            found[name].setdefault(outcome.workload, []).append(ratio)
    frozen = {name: {job: tuple(ratios) for job, ratios in by_job.items()} for name, by_job in found.items()}
    return Evidence(
        log_ratios=frozen,
        outcomes=used,
        failed=failed,
        unattributed=unattributed,
        elsewhere=elsewhere,
        apart=apart,
        changed=changed,
    )


def _log_ratio(outcome: Outcome, name: str, version: Corrections) -> float | None:
    if not outcome.judges(name):
        return None
    if name == "time_to_train_s" and outcome.attempt > 1:
        return None
    if name == "time_to_train_s" and name not in version.by_quantity and _PASSED_ON & set(version.by_quantity):
        return None
    if name == "epochs" and not outcome.target_reached:
        return None  # without a target the epochs were given, not forecast; unreached, they are a lower bound
    predicted, actual = outcome.predicted.get(name), outcome.actual.get(name)
    if predicted is None or actual is None or predicted <= 0 or actual <= 0:
        return None
    correction = version.by_quantity.get(name)
    return math.log(actual / predicted) + (0.0 if correction is None else correction.log_bias)
