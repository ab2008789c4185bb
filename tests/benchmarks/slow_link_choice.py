"""What the planner chooses for two machines and the slow link between them, from a short probe on one of them.

The probe runs on one core, as it would on one machine of the cluster; of the link its rate is known. It trains on the
training part alone and looks at the validation part. Asked is what a plan without a target is asked, only closer: of
the candidates that lose at most 0.4 points on the small batch, as surely as a job asks for, the one that is expected to
be fastest; where none is as sure as that, the surest. Candidates are those of a plan: every global batch, one machine
or both, each package of methods, and the runs that begin on one machine and take the other as their batch grows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.generalization_jobs import ENTRY, TUNE, BenchJob, Scale, job_name
from tests.benchmarks.generalization_methods import recipe_of
from tula_core import mitigations, profiling
from tula_core.job import Job
from tula_core.mitigations.batches.stages import Course, begun_alone, processes_of, staged
from tula_core.models import predictor
from tula_core.models.decision.chances import expected
from tula_core.records import Candidate, Profile, Row
from tula_core.search.space import candidates, key, reference_key

KEPT_WITHIN = 0.004
MACHINES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """A candidate's forecast, and the chance that it keeps the small batch's accuracy; None where that is unknown."""

    row: Row
    chance: float | None

    @property
    def candidate(self) -> Candidate:
        """What would be trained."""
        return self.row.candidate

    @property
    def time_s(self) -> float:
        """Seconds that are expected."""
        return expected(self.row["time_to_train_s"])


def asked_job(scale: Scale, bench: BenchJob, rate: float, link_gbps: float) -> Job:
    """Return the job that is probed and planned for."""
    return Job(
        name=job_name(scale, bench, TUNE),
        workload=ENTRY,
        recipe=recipe_of(bench, rate),
        cluster={"nodes": MACHINES, "processes_per_node": 1, "link_gbps": link_gbps},
        target="none",
        objective="time",
        mitigation="auto",
        probe={"seconds": scale.probe_s},
    )


def probe(job: Job) -> tuple[Job, Profile]:
    """Return the job with every recipe field set, and what was measured of it on one core."""
    with _one_core():
        asked, measured, _ = profiling.profile(job, reprofile=True)
    return asked, measured


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Leave this process and what it starts one core: two would be measured side by side, without a link between."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def weigh(job: Job, profile: Profile) -> list[Weighed]:
    """Return every candidate of a plan with its forecast, the small batch on one process first."""
    packages = mitigations.packages_of(job)
    costs = {name: card.step_cost for name, card in mitigations.MITIGATIONS.items()}
    fitted = predictor.fit(profile, job, effects=mitigations.effects_of(packages), step_costs=costs)
    grid = candidates(profile, job, fitted, packages)
    small = reference_key(grid, job.recipe.batch_size)
    grid = tuple(sorted(grid, key=lambda candidate: key(candidate) != small))
    rows = fitted.forecast(grid)
    return [
        Weighed(row=row, chance=fitted.keeping_probability(row.candidate, grid[0], KEPT_WITHIN))
        for row in rows
        if row["time_to_train_s"].value is not None
    ]


def choose(weighed: Sequence[Weighed], confidence: float) -> Weighed:
    """Return the fastest of those that are sure enough, the surest where none is.

    Where nothing is known of accuracy it is the first.
    """
    known = [(item.chance, item) for item in weighed if item.chance is not None]
    if not known:
        return weighed[0]
    sure = [item for chance, item in known if chance >= confidence]
    if sure:
        return min(sure, key=lambda item: item.time_s)
    return max(known, key=lambda pair: (pair[0], -pair[1].time_s))[1]


def ends_on_both(candidate: Candidate) -> bool:
    """Return whether a run uses both machines, at its end at least."""
    return candidate.processes == MACHINES


def placed_for(candidate: Candidate, course: Course) -> Candidate:
    """Return a candidate with its stages laid out anew, for a run of another length than the one it was chosen for."""
    if candidate.stages is None:
        return candidate
    alone = processes_of(candidate.stages[0]) < candidate.processes
    whole = staged(replace(candidate, stages=None), course)
    return (begun_alone(whole, course) or whole) if alone else whole
