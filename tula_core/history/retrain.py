"""`retrain`: learn corrections from outcomes, check them on jobs left out, and say whether they are better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tula_core.history.evidence import Evidence, Lookup, gather
from tula_core.history.fitting import Errors, Fitted, errors_of, fit, left_out_errors
from tula_core.history.verdict import count_words, verdict
from tula_core.progress import Event, Listener, silent
from tula_core.records import Corrections, Outcome
from tula_core.tracking import corrections_of, promote, register_challenger

MIN_OUTCOMES, MIN_JOBS = 4, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrainReport:
    """What was learnt, how it did on jobs left out, and the verdict.

    Errors are median absolute errors of ln(actual / forecast) by quantity, and by method those of ln of the gap between
    metric and best value; 0.1 is about ten per cent. ``replaced`` counts the runs that dropped their methods, by these
    in words.
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
    champion_method_error: Mapping[str, float] = field(default_factory=dict)
    challenger_method_error: Mapping[str, float] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the errors in per cent as they are shown: 100 (exp(log error) - 1)."""
        values = asdict(self)
        for side in ("champion_error", "challenger_error", "champion_method_error", "challenger_method_error"):
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
    jobs, in_use = evidence.jobs, Fitted.of(champion)
    if evidence.outcomes < MIN_OUTCOMES or len(jobs) < MIN_JOBS:
        reason = (
            f"not promoted: {count_words(evidence)} are too few to check a correction on jobs left out; "
            f"at least {MIN_OUTCOMES} outcomes of {MIN_JOBS} workloads are needed"
        )
        return _report(evidence, champion, None, (Errors(), Errors()), (False, reason))
    fitted = fit(evidence)
    if fitted == in_use:
        reason = f"not promoted: {count_words(evidence)} hold nothing that {champion.label} has not learnt"
        return _report(evidence, champion, None, (Errors(), Errors()), (False, reason))
    challenger = Corrections(
        schema_version=Corrections.SCHEMA_VERSION,
        version=champion.version + 1,
        outcomes=evidence.outcomes,
        jobs=len(jobs),
        by_quantity=fitted.by_quantity,
        by_method=fitted.by_method,
    )
    errors = errors_of(evidence, in_use), left_out_errors(evidence)
    return _report(evidence, champion, challenger, errors, verdict(evidence, *errors))


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


def _report(
    evidence: Evidence,
    champion: Corrections,
    challenger: Corrections | None,
    errors: tuple[Errors, Errors],
    judged: tuple[bool, str],
) -> RetrainReport:
    old, new = errors
    return RetrainReport(
        challenger=challenger,
        champion=champion,
        champion_error=old.by_quantity,
        challenger_error=new.by_quantity,
        champion_method_error=old.by_method,
        challenger_method_error=new.by_method,
        jobs=len(evidence.jobs),
        outcomes=evidence.outcomes,
        failed=evidence.failed,
        unattributed=evidence.unattributed,
        replaced=evidence.replaced,
        promoted=judged[0],
        reason=judged[1],
    )
