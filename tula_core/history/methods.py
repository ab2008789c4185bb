"""What outcomes say of single methods: how far what was known of them is off, in its own standard deviations.

A method that no pilot trained with is forecast by its card. Its runs say how much of the gap between the metric and its
best value they left, r = ln(gap measured/gap forecast), and the plan said how the forecast answers to the card: k, the
rise of ln of the gap for one standard deviation of it. So r/k is by how many of its standard deviations the card is off
there, whatever the network, the batch and the epochs: near the reference batch a method can hardly err, far above it by
much. To first order a forecast answers to a shift z of the card by z k, which is how shifts are checked on outcomes.

For workload w with median y_w of r/k, and v_w its variance that the forecasts stated, the card's part taken out:

    y_w = mu + beta_w + e_w,  mu ~ N(0, q),  beta_w ~ N(0, s_beta^2/(k_w^2 (1 + J0))),  e_w ~ N(0, tau^2 + v_w)

q = 1/2 is the share of a card's variance that all jobs have in common, and beta what all methods miss in common, known
the better the more workloads J0 trained without such a method. mu's posterior is that of a normal mean with known
variances (Gelman et al., Bayesian Data Analysis, 3rd edition, eq. 2.12), with the weighted median over workloads for
their weighted mean. tau^2 is a variance whose prior 1 - q is worth three workloads (section 2.6 there), estimated from
the scatter about mu's mean beyond v_w, each workload counting by 1/(1 + v_w). q, s_beta and the worth of the prior are
empirical. Without any run the answer is 0 with standard deviation 1: the card.

Runs count as they ended, however their rate was lowered on the way: the guard against divergence is part of how a
method trains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tula_core.mitigations import MITIGATIONS
from tula_core.records import Corrections, MitigationEffect, Outcome
from tula_core.records.corrections import MethodCorrection

COMMON_SHARE = 0.5  # of a card's variance is an error that all jobs share, the rest differs from job to job
COMMON_SD = 0.1  # of ln of the gap that forecasts of all methods may miss in common
PRIOR_JOBS = 3.0  # workloads that the card's own spread between jobs is worth
OUTLIER = 3.0  # a run that is off by more standard deviations than this counts as off by so many
_MEDIAN_VARIANCE = math.pi / 2  # of a median of many over that of their mean
_Z90 = 1.645
_LEAST_SD, _MOST_SD = 0.05, 3.0  # of a forecast's ln of the gap
_LEAST_RESPONSE = 0.02  # of ln of the gap: what moves a forecast by less says nothing of a card


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodRun:
    """A run with one method that no pilot trained with, beside what its card alone made the forecast.

    Attributes
    ----------
    gap
        Forecast of the gap between metric and best value where training ended, all corrections undone.
    response
        Rise of ln of the gap for one standard deviation of the card, above 0.
    noise_sd
        Of ln of the gap by the forecast's 90 % interval, the card's part taken out.
    metric
        What was measured there.
    """

    workload: str
    method: str
    card: MitigationEffect
    best: float
    higher_is_better: bool
    gap: float
    response: float
    noise_sd: float
    metric: float

    def log_gap(self, log_bias: float) -> float:
        """Return ln(gap measured/gap forecast), with a common correction of the metric taken out of what was measured.

        Nothing that lies beyond `OUTLIER` standard deviations of forecast and card counts for more than these.
        """
        bound = OUTLIER * math.hypot(self.noise_sd, self.response)
        left = _gap(self.metric * math.exp(-log_bias), self.best, self.higher_is_better)
        return -bound if left <= 0 else min(bound, max(-bound, math.log(left / self.gap)))

    def log_ratio(self, shift: float) -> float | None:
        """Return ln(metric measured/metric forecast), the forecast with the card off by ``shift``."""
        left = self.gap * math.exp(shift * self.response)
        forecast = self.best - left if self.higher_is_better else self.best + left
        return math.log(self.metric / forecast) if self.metric > 0 and forecast > 0 else None


def untried(outcome: Outcome) -> list[str]:
    """Return the methods of a run above its reference batch that no pilot trained with; none where that is unknown."""
    batch = outcome.nodes * outcome.processes_per_node * outcome.local_batch * outcome.accumulation
    large = outcome.reference_batch is not None and batch > outcome.reference_batch
    return [name for name in outcome.mitigation if name in outcome.untried] if large else []


def method_run(outcome: Outcome, version: Corrections) -> MethodRun | None:
    """Return the run of a single such method with the corrections of its forecast's version undone.

    None where several methods acted together, where the card has changed since, where the forecast hardly answers to
    it, or where metric, best value or forecast are unknown.
    """
    names, end, metric = untried(outcome), outcome.expected_end, outcome.actual.get("accuracy")
    best, higher, response = outcome.metric_best, outcome.higher_is_better, outcome.method_response
    known = (
        None not in (best, higher, metric)
        and response is not None
        and response >= _LEAST_RESPONSE
        and end is not None
        and end.value is not None
    )
    if len(names) != 1 or not known or outcome.untried[names[0]] != today(names[0]):
        return None
    assert end is not None and end.value is not None and metric is not None and best is not None
    assert higher is not None and response is not None
    [name] = names
    common = version.by_quantity.get("accuracy")
    undone = math.exp(0.0 if common is None else -common.log_bias)
    gap = _gap(end.value * undone, best, higher)
    if gap <= 0:
        return None
    learnt = version.by_method.get(name)
    shift, spread = (0.0, 1.0) if learnt is None or learnt.card != today(name) else (learnt.shift, learnt.spread)
    return MethodRun(
        workload=outcome.workload,
        method=name,
        card=outcome.untried[name],
        best=best,
        higher_is_better=higher,
        gap=gap * math.exp(-shift * response),
        response=response,
        noise_sd=_noise_sd(
            [None if bound is None else bound * undone for bound in (end.low, end.high)],
            best,
            higher,
            spread * response,
        ),
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
        shift = methods[run.method].shift * run.response if run.method in methods else 0.0
        errors.setdefault(run.method, {}).setdefault(run.workload, []).append(abs(run.log_gap(log_bias) - shift))
    return {
        name: statistics.median(statistics.median(each) for each in by_job.values())
        for name, by_job in sorted(errors.items())
    }


def _fit(runs: Sequence[MethodRun], log_bias: float, contrasts: int) -> MethodCorrection:
    by_job: dict[str, list[MethodRun]] = {}
    for run in runs:
        by_job.setdefault(run.workload, []).append(run)
    centres = [statistics.median(run.log_gap(log_bias) / run.response for run in found) for found in by_job.values()]
    noise = [statistics.median((run.noise_sd / run.response) ** 2 for run in found) for found in by_job.values()]
    common = [
        statistics.median((COMMON_SD / run.response) ** 2 for run in found) / (1.0 + contrasts)
        for found in by_job.values()
    ]

    def posterior(between: float) -> tuple[float, float]:
        weights = [1.0 / (between + own) for own in noise]
        shared = sum(each * weight for each, weight in zip(common, weights, strict=True)) / sum(weights)
        less_sharp = 1.0 + (_MEDIAN_VARIANCE - 1.0) * (1.0 - 1.0 / len(weights))
        gain = COMMON_SHARE / (COMMON_SHARE + shared + less_sharp / sum(weights))
        return gain * _weighted_median(centres, weights), COMMON_SHARE * (1.0 - gain)

    mean, _ = posterior(1.0 - COMMON_SHARE)
    counts = [1.0 / (1.0 + own) for own in noise]
    beyond = [max(0.0, (centre - mean) ** 2 - own) for centre, own in zip(centres, noise, strict=True)]
    scatter = sum(count * each for count, each in zip(counts, beyond, strict=True))
    seen = max(0.0, sum(counts) - 1.0)  # of a single workload nothing is seen of how far they differ
    between = (PRIOR_JOBS * (1.0 - COMMON_SHARE) + scatter) / (PRIOR_JOBS + seen)
    mean, variance = posterior(between)
    return MethodCorrection(
        shift=mean, spread=math.sqrt(variance + between), outcomes=len(runs), jobs=len(by_job), card=runs[0].card
    )


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the value with half of the weight on either side, the mean of two where it falls between them."""
    ordered, half, below = sorted(zip(values, weights, strict=True)), sum(weights) / 2.0, 0.0
    for place, (value, weight) in enumerate(ordered):
        below += weight
        if math.isclose(below, half, rel_tol=1e-9) and place + 1 < len(ordered):
            return (value + ordered[place + 1][0]) / 2.0
        if below > half:
            break
    return value


def _gap(metric: float, best: float, higher_is_better: bool) -> float:
    return best - metric if higher_is_better else metric - best


def _noise_sd(ends: Sequence[float | None], best: float, higher_is_better: bool, own_sd: float) -> float:
    """Return the standard deviation of ln of the gap of a forecast with this 90 % interval, without a card's part."""
    gaps = [_gap(end, best, higher_is_better) for end in ends if end is not None]
    if min(gaps) <= 0:  # the best value is inside: anything may be left
        return _MOST_SD
    stated = min(_MOST_SD, abs(math.log(gaps[0] / gaps[1])) / (2.0 * _Z90))
    return math.sqrt(max(stated**2 - own_sd**2, _LEAST_SD**2))
