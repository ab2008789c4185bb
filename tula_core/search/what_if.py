"""`answer_what_if`: the plan's question asked again for each node type that the job names, from its facts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tula_core.job import Job
from tula_core.mitigations import Packages
from tula_core.records import Profile, WhatIf
from tula_core.search.api import make_plan
from tula_core.search.forecaster import Forecaster


@dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """One node type: its name, and the predictor, profile and job as they are there."""

    name: str
    predictor: Forecaster
    profile: Profile
    job: Job


def answer_what_if(places: Sequence[Elsewhere], mitigation: tuple[str, ...] | Packages) -> tuple[WhatIf, ...]:
    """Return what would be chosen on each node type under the job's limits and objective, in their order."""
    return tuple(_answer(place, mitigation) for place in places)


def _answer(place: Elsewhere, mitigation: tuple[str, ...] | Packages) -> WhatIf:
    plan = make_plan(place.profile, place.job, place.predictor, mitigation=mitigation)
    return WhatIf(name=place.name, choice=plan.choice, reason=plan.reason, assumptions=place.predictor.assumptions)
