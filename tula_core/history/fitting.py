"""Corrections fitted to evidence: of quantities, and of the effects of methods.

Per quantity the correction is the centre of ln(actual / uncorrected forecast), a median of the workloads' medians so
that neither one odd run nor one much-repeated job decides, drawn towards no correction where there is little evidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tula_core.history.evidence import QUANTITIES, Evidence
from tula_core.history.methods import fit_methods, method_errors, today
from tula_core.records import Correction, Corrections
from tula_core.records.corrections import MethodCorrection

PRIOR_OUTCOMES, PRIOR_JOBS = 1.0, 1.0  # evidence that no correction is worth
OUTLIER = 5.0  # residuals beyond so many median deviations count as this far

ByJob = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Corrections by quantity and by method."""

    by_quantity: Mapping[str, Correction] = field(default_factory=dict)
    by_method: Mapping[str, MethodCorrection] = field(default_factory=dict)

    @classmethod
    def of(cls, corrections: Corrections) -> Fitted:
        """Return those in use: of methods, the ones that are about what their cards say today."""
        methods = {name: learnt for name, learnt in corrections.by_method.items() if learnt.card == today(name)}
        return cls(by_quantity=dict(corrections.by_quantity), by_method=methods)

    def bias(self, name: str) -> float:
        """Return the log bias of one quantity, 0 where it is not corrected."""
        return self.by_quantity[name].log_bias if name in self.by_quantity else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Median absolute errors: by quantity of ln(actual / forecast), by method of ln of the gap to the best metric."""

    by_quantity: Mapping[str, float] = field(default_factory=dict)
    by_method: Mapping[str, float] = field(default_factory=dict)


def fit(evidence: Evidence, without: str | None = None) -> Fitted:
    """Return the corrections fitted on all workloads but ``without``.

    The metric's common correction and the effects of methods are told apart in turn: the effects are what runs with a
    method left beyond the correction of all other runs, and the correction then is that of all runs, each method's own
    part taken out. So nothing is counted twice, and what only runs with methods show is shared out.
    """
    plain = {job: ratios for job, ratios in evidence.log_ratios["accuracy"].items() if job != without}
    runs = [run for run in evidence.method_runs if run.workload != without]
    common = shrunk_bias(plain) if plain else 0.0
    methods = fit_methods(runs, common, len(evidence.contrasts - {without}))
    found: dict[str, Correction] = {}
    for name in QUANTITIES:
        by_job = {job: ratios for job, ratios in ratios_of(evidence, name, methods).items() if job != without}
        if by_job:
            bias = shrunk_bias(by_job)
            ratios = [ratio for job in by_job.values() for ratio in job]
            found[name] = Correction(log_bias=bias, log_sd=spread(ratios, bias), outcomes=len(ratios))
    return Fitted(by_quantity=found, by_method=methods)


def ratios_of(evidence: Evidence, name: str, methods: Mapping[str, MethodCorrection]) -> dict[str, tuple[float, ...]]:
    """Return the log ratios of a quantity by workload; those of the metric with what is known of methods forecast."""
    found = dict(evidence.log_ratios[name])
    for run in evidence.method_runs if name == "accuracy" else ():
        ratio = run.log_ratio(methods[run.method].shift if run.method in methods else 0.0)
        found[run.workload] = found.get(run.workload, ()) + (() if ratio is None else (ratio,))
    return {job: ratios for job, ratios in found.items() if ratios}


def shrunk_bias(by_job: ByJob) -> float:
    """Return the centre of log ratios, drawn to zero.

    ``b = m · n / (n + k) · J / (J + l)`` with m the median over workloads of each workload's median, n outcomes of J
    workloads, and k = l = 1 the evidence that no correction is worth: the posterior mean of a location under a
    zero-centred prior, once for the scatter of runs and once for the scatter of workloads (Gelman et al., Bayesian
    Data Analysis, 3rd edition, section 5.4, with the variance ratios fixed). Deviation: medians for means.
    """
    outcomes, jobs = sum(len(ratios) for ratios in by_job.values()), len(by_job)
    middle = statistics.median(statistics.median(ratios) for ratios in by_job.values())
    return middle * outcomes / (outcomes + PRIOR_OUTCOMES) * jobs / (jobs + PRIOR_JOBS)


def spread(ratios: Sequence[float], bias: float) -> float:
    """Return the root mean square of log ratios about the bias, with outliers drawn in to five median deviations.

    About the shrunk bias and not the mean: what the shrinking leaves uncorrected belongs into the interval too.
    """
    residuals = [abs(ratio - bias) for ratio in ratios]
    bound = OUTLIER * 1.4826 * statistics.median(residuals)  # 1.4826 makes a median deviation a standard deviation
    drawn = [min(residual, bound) if bound > 0 else residual for residual in residuals]
    return math.sqrt(sum(residual**2 for residual in drawn) / max(1, len(drawn) - 1))


def errors_of(evidence: Evidence, fitted: Fitted) -> Errors:
    """Return how far forecasts with these corrections are off, on everything."""
    return _errors(evidence, dict.fromkeys(evidence.jobs, fitted))


def left_out_errors(evidence: Evidence) -> Errors:
    """Return how far forecasts are off that are corrected by what was fitted without the workload they are for."""
    return _errors(evidence, {job: fit(evidence, without=job) for job in evidence.jobs})


def _errors(evidence: Evidence, fits: Mapping[str, Fitted]) -> Errors:
    by_quantity = {}
    for name in QUANTITIES:
        off: dict[str, float] = {}
        for job, fitted in fits.items():
            ratios = ratios_of(evidence, name, fitted.by_method).get(job, ())
            if ratios:
                off[job] = statistics.median(abs(ratio - fitted.bias(name)) for ratio in ratios)
        if off:
            by_quantity[name] = statistics.median(off.values())
    known = {job: (fitted.bias("accuracy"), fitted.by_method) for job, fitted in fits.items()}
    return Errors(by_quantity=by_quantity, by_method=method_errors(evidence.method_runs, known))
