"""What an outcome says about the uncorrected forecast: ln(actual / predicted), by quantity, and what of its method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tula_core.history.methods import MethodRun, method_run, untried
from tula_core.records import Corrections, Outcome
from tula_core.records.outcome import method_words

QUANTITIES = ("step_time_s", "time_to_train_s", "epochs", "accuracy", "memory_bytes")
"""The quantities whose forecast is corrected; the others follow from them."""

_PASSED_ON = {"step_time_s", "epochs"}  # corrections that enter a training time which has none of its own

Lookup = Callable[[str], Corrections | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The log ratios by quantity and workload, the runs of single methods, and how many outcomes gave none and why."""

    log_ratios: dict[str, dict[str, tuple[float, ...]]]  # by quantity, then by workload
    outcomes: int
    failed: int
    unattributed: int  # made by a version whose corrections cannot be had
    elsewhere: int = 0  # on other hardware than the plan's
    apart: int = 0  # trained in another precision than the recipe's
    changed: int = 0  # their methods proved wrong and others took over
    method_runs: tuple[MethodRun, ...] = ()
    unclear: int = 0  # trained with methods that no pilot used, and do not say what one of them did
    contrasts: frozenset[str] = frozenset()  # workloads with a whole run that no such method had a part in
    replaced: Mapping[str, int] = field(default_factory=dict)  # runs that dropped them, by methods in words

    @property
    def jobs(self) -> list[str]:
        """The kinds of job, that is the workloads, that gave evidence, sorted."""
        of_methods = {run.workload for run in self.method_runs}
        return sorted(of_methods.union(*self.log_ratios.values()))


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
    reached and took says nothing of the other's forecast. That they were changed tells against the methods that were
    dropped, but not by how much: they are counted by these and move nothing.

    A run above its reference batch with a method that no pilot trained with is evidence of the method
    (`tula_core.history.methods`): its metric is compared there, and its epochs to a target, with the time that they
    took, are not compared, since both hold what the method did.
    """
    found = _Found()
    for outcome in sorted(outcomes, key=lambda one: one.job_id):  # so that sums do not depend on the order given
        found.add(outcome, lookup)
    return found.evidence()


@dataclass(slots=True)
class _Found:
    """What was found in the outcomes so far."""

    ratios: dict[str, dict[str, list[float]]] = field(default_factory=lambda: {name: {} for name in QUANTITIES})
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("outcomes", "failed", "unattributed", "elsewhere", "apart", "changed", "unclear"), 0
        )
    )
    runs: list[MethodRun] = field(default_factory=list)
    contrasts: set[str] = field(default_factory=set)
    replaced: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Outcome, lookup: Lookup) -> None:
        """Take an outcome's evidence, or count why it gives none."""
        reason = _left_out(outcome)
        version = lookup(outcome.predictor) if reason is None else None
        if version is None:
            self.counts[reason or "unattributed"] += 1
            for change in outcome.method_changes if reason == "changed" else ():
                dropped = method_words(change.dropped)
                self.replaced[dropped] = self.replaced.get(dropped, 0) + 1
            return
        told = self._add_method(outcome, version) if untried(outcome) else False
        known = {
            name: ratio
            for name in QUANTITIES
            if not (untried(outcome) and _holds_methods(outcome, name))
            and (ratio := _log_ratio(outcome, name, version)) is not None
        }
        self.counts["outcomes"] += bool(known) or told
        self.counts["elsewhere"] += outcome.planned_hardware is not None
        if "accuracy" in known and not outcome.target_reached:
            self.contrasts.add(outcome.workload)
        for name, ratio in known.items():
            self.ratios[name].setdefault(outcome.workload, []).append(ratio)

    def _add_method(self, outcome: Outcome, version: Corrections) -> bool:
        """Take what a run says of its method and return whether it says anything."""
        run = method_run(outcome, version)
        self.counts["unclear"] += run is None
        self.runs += [] if run is None else [run]
        return run is not None

    def evidence(self) -> Evidence:
        """Return all of it."""
        return Evidence(
            log_ratios={
                name: {job: tuple(ratios) for job, ratios in by_job.items()} for name, by_job in self.ratios.items()
            },
            method_runs=tuple(self.runs),
            contrasts=frozenset(self.contrasts),
            replaced=dict(sorted(self.replaced.items())),
            **self.counts,
        )


def _left_out(outcome: Outcome) -> str | None:
    """Return why an outcome gives no evidence at all, as the name of its count; None where it gives some."""
    if outcome.status != "FINISHED":
        return "failed"
    if outcome.precision is not None:
        return "apart"
    return "changed" if outcome.method_changes else None


def _holds_methods(outcome: Outcome, name: str) -> bool:
    """Return whether a quantity of a run holds what a method that no pilot trained with did to learning."""
    to_a_target = outcome.target_reached is not None
    return name == "accuracy" or (to_a_target and name in ("epochs", "time_to_train_s"))


def _log_ratio(outcome: Outcome, name: str, version: Corrections) -> float | None:
    if not outcome.judges(name):
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
