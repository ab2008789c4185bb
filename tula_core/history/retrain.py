"""`retrain`: learn corrections from outcomes, check them on jobs left out, and say whether they are better.

Per quantity the correction is the centre of ln(actual / uncorrected forecast), a median of the workloads' medians so
that neither one odd run nor one much-repeated job decides, drawn towards no correction where there is little evidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tula_core.history.evidence import QUANTITIES, Evidence, Lookup, gather
from tula_core.progress import Event, Listener, silent
from tula_core.records import Correction, Corrections, Outcome
from tula_core.tracking import corrections_of, promote, register_challenger

MIN_OUTCOMES, MIN_JOBS = 4, 2
PRIOR_OUTCOMES, PRIOR_JOBS = 1.0, 1.0  # evidence that no correction is worth
DECIDING = ("step_time_s", "time_to_train_s")
GAIN, GAIN_SHARE = 0.005, 0.05  # the error must fall by more than both: in ln units, and as a share of itself
LOSS, LOSS_SHARE = 0.02, 0.1  # no quantity's error may rise by more than the larger of both
OUTLIER = 5.0  # residuals beyond so many median deviations count as this far

ByJob = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrainReport:
    """What was learnt, how it did on jobs left out, and the verdict.

    Errors are median absolute errors of ln(actual / forecast) by quantity; 0.1 is about ten per cent.
    """

    challenger: Corrections | None
    champion: Corrections
    champion_error: Mapping[str, float]
    challenger_error: Mapping[str, float]
    jobs: int
    outcomes: int
    failed: int
    unattributed: int
    promoted: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the errors in per cent as they are shown: 100 (exp(log error) - 1)."""
        values = asdict(self)
        for side in ("champion_error", "challenger_error"):
            values[f"{side}_pct"] = {name: 100 * math.expm1(error) for name, error in values.pop(side).items()}
        return values


def retrain(outcomes: Iterable[Outcome], champion: Corrections, *, lookup: Lookup = corrections_of) -> RetrainReport:
    """Fit corrections on all outcomes and judge them by forecasts for workloads they have not seen.

    The challenger's errors are those of corrections fitted without the workload they are tried on. The champion is
    tried on everything, what it learnt from included, which favours it. Equal outcomes give an equal report.

    Parameters
    ----------
    champion
        The corrections in use.
    lookup
        Gives the corrections of the version that an outcome names.
    """
    evidence = gather(outcomes, lookup)
    jobs = evidence.jobs
    if evidence.outcomes < MIN_OUTCOMES or len(jobs) < MIN_JOBS:
        reason = (
            f"not promoted: {_count(evidence)} are too few to check a correction on jobs left out; "
            f"at least {MIN_OUTCOMES} outcomes of {MIN_JOBS} workloads are needed"
        )
        return _report(evidence, champion, None, ({}, {}), (False, reason))
    fitted = fit(evidence)
    challenger = Corrections(
        schema_version=Corrections.SCHEMA_VERSION,
        version=champion.version + 1,
        outcomes=evidence.outcomes,
        jobs=len(jobs),
        by_quantity=fitted,
    )
    if fitted == dict(champion.by_quantity):
        reason = f"not promoted: {_count(evidence)} hold nothing that {champion.label} has not learnt"
        return _report(evidence, champion, None, ({}, {}), (False, reason))
    errors = _champion_errors(evidence, champion), _left_out_errors(evidence)
    return _report(evidence, champion, challenger, errors, _verdict(evidence, *errors))


def adopt(report: RetrainReport, *, listener: Listener = silent) -> RetrainReport:
    """Register the challenger and make it the champion if it won; return the report with the number it got.

    Raises
    ------
    RunError
        The registry cannot be reached.
    """
    if report.challenger is None:
        return report
    version = register_challenger(report.challenger, report.to_dict())
    challenger = replace(report.challenger, version=version)
    if report.promoted:
        challenger = promote(version)
    role = "champion" if report.promoted else "challenger"
    listener(Event(stage="retrain", message=f"registered {challenger.label} as {role}", level="info"))
    return replace(report, challenger=challenger)


def fit(evidence: Evidence, without: str | None = None) -> dict[str, Correction]:
    """Return the correction of each quantity, fitted on all workloads but ``without``."""
    found: dict[str, Correction] = {}
    for name in QUANTITIES:
        by_job = {job: ratios for job, ratios in evidence.log_ratios[name].items() if job != without}
        if by_job:
            bias = shrunk_bias(by_job)
            ratios = [ratio for job in by_job.values() for ratio in job]
            found[name] = Correction(log_bias=bias, log_sd=spread(ratios, bias), outcomes=len(ratios))
    return found


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


def _error(by_job: ByJob, bias_for: Mapping[str, float]) -> float:
    """Return the median over workloads of each workload's median absolute error."""
    return statistics.median(
        statistics.median(abs(ratio - bias_for[job]) for ratio in ratios) for job, ratios in by_job.items()
    )


def _champion_errors(evidence: Evidence, champion: Corrections) -> dict[str, float]:
    errors = {}
    for name, by_job in evidence.log_ratios.items():
        if by_job:
            correction = champion.by_quantity.get(name)
            errors[name] = _error(by_job, dict.fromkeys(by_job, correction.log_bias if correction else 0.0))
    return errors


def _left_out_errors(evidence: Evidence) -> dict[str, float]:
    fits = {job: fit(evidence, without=job) for job in evidence.jobs}
    errors = {}
    for name, by_job in evidence.log_ratios.items():
        if by_job:
            bias = {job: fits[job][name].log_bias if name in fits[job] else 0.0 for job in by_job}
            errors[name] = _error(by_job, bias)
    return errors


def _verdict(evidence: Evidence, old: Mapping[str, float], new: Mapping[str, float]) -> tuple[bool, str]:
    names = [name for name in DECIDING if name in old]
    if not names:
        return False, f"not promoted: {_count(evidence)} hold no step time and no training time to judge by"
    before, after = (statistics.fmean(errors[name] for name in names) for errors in (old, new))
    told = f"on workloads left out the error of {' and '.join(names)} goes from {_pct(before)} to {_pct(after)}"
    worse = [name for name in old if new[name] - old[name] > max(LOSS, LOSS_SHARE * old[name])]
    if before - after <= max(GAIN, GAIN_SHARE * before):
        return False, f"not promoted: {told}, which is no clear gain ({_count(evidence)})"
    if worse:
        changes = ", ".join(f"{name} from {_pct(old[name])} to {_pct(new[name])}" for name in worse)
        return False, f"not promoted: {told}, but others get worse: {changes} ({_count(evidence)})"
    return True, f"promoted: {told} ({_count(evidence)})"


def _pct(log_error: float) -> str:
    return f"{100 * math.expm1(log_error):.1f} %"


def _count(evidence: Evidence) -> str:
    parts = [f"{evidence.outcomes} finished outcomes of {len(evidence.jobs)} workloads"]
    if evidence.failed:
        parts.append(f"{evidence.failed} failed or killed that give no ratio")
    if evidence.elsewhere:
        parts.append(f"{evidence.elsewhere} on other hardware than planned that teach nothing of time and memory")
    if evidence.apart:
        parts.append(f"{evidence.apart} in another precision than their recipe's")
    if evidence.unattributed:
        parts.append(f"{evidence.unattributed} by predictor versions that cannot be found")
    return ", ".join(parts)


def _report(
    evidence: Evidence,
    champion: Corrections,
    challenger: Corrections | None,
    errors: tuple[Mapping[str, float], Mapping[str, float]],
    verdict: tuple[bool, str],
) -> RetrainReport:
    return RetrainReport(
        challenger=challenger,
        champion=champion,
        champion_error=errors[0],
        challenger_error=errors[1],
        jobs=len(evidence.jobs),
        outcomes=evidence.outcomes,
        failed=evidence.failed,
        unattributed=evidence.unattributed,
        promoted=verdict[0],
        reason=verdict[1],
    )
