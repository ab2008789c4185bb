"""What outcomes say of single methods: how much of the gap to the best metric their runs left, beside the forecast.

A method that no pilot trained with is forecast by its card. What its runs left of the gap between the metric and its
best value, over what was forecast, tells how far the card is off. The gap is the place to learn it: a forecast answers
to a factor on the gap by that very factor, so that a shift can be checked on outcomes without forecasting anew, which
one of the work cannot, and where the gap is a tenth, an error of one per cent of the metric is one of ten per cent.

For workload w with median d_w of those logarithms, and s_w^2 the variance that its forecasts stated:

    d_w = mu + beta + e_w,  mu ~ N(0, q s^2),  beta ~ N(0, s_beta^2/(1 + J0)),  e_w ~ N(0, tau^2 + s_w^2)

with s the card's own spread (`tula_core.records.corrections.card_log_gap_sd`), q = 1/2 the share of it that all jobs
have in common, and beta what all methods miss in common, known the better the more workloads J0 trained without such a
method. mu's posterior is that of a normal mean with known variances (Gelman et al., Bayesian Data Analysis, 3rd
edition, eq. 2.12) with the median over the workloads for their mean; tau^2 is a variance whose prior (1 - q) s^2 is
worth three workloads (section 2.6 there), estimated from all of the scatter about mu's mean: noise of forecasts is left
in it, since what they state of their noise holds the method's part too and would explain any contradiction away. In
trials with the stated noise at half to twice its true size, 90 % intervals held 88 to 98 % of jobs that were not seen.
q, s_beta and the worth of the prior are empirical. Without any run the answer is mean 0 and standard deviation s: the
card.

Runs count as they ended, however their rate was lowered on the way: the guard against divergence is part of how a
method trains. The factor is the same at every batch above the reference one; that it is not, is part of how far jobs
differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tula_core.mitigations import MITIGATIONS
from tula_core.records import Corrections, MitigationEffect, Outcome
from tula_core.records.corrections import MethodCorrection, card_log_gap_sd

COMMON_SHARE = 0.5  # of a card's variance is an error that all jobs share, the rest differs from job to job
COMMON_SD = 0.1  # of ln of the gap that forecasts of all methods may miss in common
PRIOR_JOBS = 3.0  # workloads that the card's own spread between jobs is worth
OUTLIER = 3.0  # a run that is off by more standard deviations than this counts as off by so many
_MEDIAN_VARIANCE = math.pi / 2  # of a median of many over that of their mean
_Z90 = 1.645
_LEAST_SD, _MOST_SD, _USUAL_SD = 0.05, 1.0, 0.2  # of a forecast's ln of the gap; the usual one where it gave none


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodRun:
    """A run with one method that no pilot trained with, beside what its card alone made the forecast.

    Attributes
    ----------
    gap
        Forecast of the gap between metric and best value where training ended, all corrections undone.
    log_gap_sd
        Of the forecast, by its 90 % interval.
    metric
        What was measured there.
    """

    workload: str
    method: str
    card: MitigationEffect
    best: float
    higher_is_better: bool
    gap: float
    log_gap_sd: float
    metric: float

    def log_gap(self, log_bias: float) -> float:
        """Return ln(gap measured/gap forecast), with a common correction of the metric taken out of what was measured.

        Nothing that lies beyond `OUTLIER` standard deviations of forecast and card counts for more than these.
        """
        bound = OUTLIER * math.hypot(self.log_gap_sd, card_log_gap_sd(self.card))
        left = _gap(self.metric * math.exp(-log_bias), self.best, self.higher_is_better)
        return -bound if left <= 0 else min(bound, max(-bound, math.log(left / self.gap)))

    def log_ratio(self, log_gap: float) -> float | None:
        """Return ln(metric measured/metric forecast), the forecast with a factor exp(log_gap) on its gap."""
        left = self.gap * math.exp(log_gap)
        forecast = self.best - left if self.higher_is_better else self.best + left
        return math.log(self.metric / forecast) if self.metric > 0 and forecast > 0 else None


def untried(outcome: Outcome) -> list[str]:
    """Return the methods of a run above its reference batch that no pilot trained with; none where that is unknown."""
    batch = outcome.nodes * outcome.processes_per_node * outcome.local_batch * outcome.accumulation
    large = outcome.reference_batch is not None and batch > outcome.reference_batch
    return [name for name in outcome.mitigation if name in outcome.untried] if large else []


def method_run(outcome: Outcome, version: Corrections) -> MethodRun | None:
    """Return the run of a single such method with the corrections of its forecast's version undone.

    None where several methods acted together, where the card has changed since, or where metric, best value or
    forecast are unknown.
    """
    names, end, metric = untried(outcome), outcome.expected_end, outcome.actual.get("accuracy")
    best, higher = outcome.metric_best, outcome.higher_is_better
    known = None not in (best, higher, metric) and end is not None and end.value is not None
    if len(names) != 1 or not known or outcome.untried[names[0]] != today(names[0]):
        return None
    assert end is not None and end.value is not None and metric is not None and best is not None and higher is not None
    [name] = names
    common = version.by_quantity.get("accuracy")
    forecast = end.value * math.exp(0.0 if common is None else -common.log_bias)
    gap = _gap(forecast, best, higher)
    if gap <= 0:
        return None
    learnt = version.by_method.get(name)
    applied = learnt.log_gap if learnt is not None and learnt.card == outcome.untried[name] else 0.0
    return MethodRun(
        workload=outcome.workload,
        method=name,
        card=outcome.untried[name],
        best=best,
        higher_is_better=higher,
        gap=gap * math.exp(-applied),
        log_gap_sd=_stated_sd([end.low, end.high], best, higher),
        metric=metric,
    )


def today(name: str) -> MitigationEffect | None:
    """Return what a method's card says now; None for a method that is unknown or of which nothing is known."""
    return MITIGATIONS[name].effect if name in MITIGATIONS else None


def fit_methods(runs: Iterable[MethodRun], log_bias: float, contrasts: int) -> dict[str, MethodCorrection]:
    """Return what runs say of each method.

    Parameters
    ----------
    log_bias
        The common correction of the metric.
    contrasts
        Workloads with runs that no such method had a part in, J0.
    """
    by_method: dict[str, list[MethodRun]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    return {name: _fit(found, log_bias, contrasts) for name, found in sorted(by_method.items())}


def by_workload(runs: Iterable[MethodRun], log_bias: float) -> dict[str, tuple[list[float], list[float]]]:
    """Return ln(gap measured/gap forecast) of runs and the variances that were stated, by workload."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for run in runs:
        ratios, variances = found.setdefault(run.workload, ([], []))
        ratios.append(run.log_gap(log_bias))
        variances.append(run.log_gap_sd**2)
    return found


def method_errors(
    runs: Iterable[MethodRun], known: Mapping[str, tuple[float, Mapping[str, MethodCorrection]]]
) -> dict[str, float]:
    """Return the median over workloads of each workload's median absolute error of ln of the gap, by method.

    Parameters
    ----------
    known
        By workload, the common correction of the metric and what is known of the methods.
    """
    errors: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        log_bias, methods = known[run.workload]
        shift = methods[run.method].log_gap if run.method in methods else 0.0
        errors.setdefault(run.method, {}).setdefault(run.workload, []).append(abs(run.log_gap(log_bias) - shift))
    return {
        name: statistics.median(statistics.median(each) for each in by_job.values())
        for name, by_job in sorted(errors.items())
    }


def _fit(runs: Sequence[MethodRun], log_bias: float, contrasts: int) -> MethodCorrection:
    by_job = by_workload(runs, log_bias)
    centres = [statistics.median(ratios) for ratios, _ in by_job.values()]
    stated = [statistics.median(variances) for _, variances in by_job.values()]
    card, jobs = runs[0].card, len(by_job)
    shared = COMMON_SHARE * card_log_gap_sd(card) ** 2
    between = (1.0 - COMMON_SHARE) * card_log_gap_sd(card) ** 2

    def posterior(spread: float) -> tuple[float, float]:
        less_sharp = 1.0 + (_MEDIAN_VARIANCE - 1.0) * (1.0 - 1.0 / jobs)
        variance = less_sharp * (spread + statistics.fmean(stated)) / jobs
        evidence = shared + COMMON_SD**2 / (1.0 + contrasts) + variance
        gain = shared / evidence
        return gain * statistics.median(centres), shared * (1.0 - gain)

    mean, _ = posterior(between)
    scatter = sum((centre - mean) ** 2 for centre in centres)
    spread = (PRIOR_JOBS * between + scatter) / (PRIOR_JOBS + jobs - 1.0)  # of a single one nothing is seen
    mean, variance = posterior(spread)
    return MethodCorrection(
        log_gap=mean, log_gap_sd=math.sqrt(variance + spread), outcomes=len(runs), jobs=jobs, card=card
    )


def _gap(metric: float, best: float, higher_is_better: bool) -> float:
    return best - metric if higher_is_better else metric - best


def _stated_sd(ends: Sequence[float | None], best: float, higher_is_better: bool) -> float:
    """Return the standard deviation of ln of the gap of a forecast with this 90 % interval."""
    gaps = [_gap(end, best, higher_is_better) for end in ends if end is not None]
    if len(gaps) < 2:
        return _USUAL_SD
    if min(gaps) <= 0:  # the best value is inside: anything may be left
        return _MOST_SD
    return min(_MOST_SD, max(_LEAST_SD, abs(math.log(gaps[0] / gaps[1])) / (2.0 * _Z90)))
