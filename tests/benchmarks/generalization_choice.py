"""What ``auto`` chooses for a job of the benchmark: the planner's own forecasts at the large batch, from a short probe.

The probe trains on the training part alone and looks at the validation part, by the recipe with the small batch's rate.
Asked is what a plan without a target is asked: of the packages of methods that keep the small batch's accuracy, within
half a point here, as surely as a job asks for, the fastest; where none is as sure as that, the surest. Probe and choice
are kept beside the results, so that each is made once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.generalization_jobs import ENTRY, TUNE, BenchJob, Scale, job_name
from tests.benchmarks.generalization_methods import recipe_of
from tula_core import mitigations, profiling
from tula_core.job import Job
from tula_core.mitigations.batches.stages import Course, staged
from tula_core.models import predictor
from tula_core.records import Candidate, Profile, Row, load, save

KEPT_WITHIN = 0.005

Chooser = Callable[[BenchJob, float], tuple[str, ...] | None]
"""Gives the methods for a job and the small batch's rate; None while they are not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """A package at the large batch: its forecast, and the chance that it keeps the small batch's accuracy."""

    row: Row
    chance: float

    @property
    def names(self) -> tuple[str, ...]:
        """The methods."""
        return self.row.candidate.mitigation

    def __str__(self) -> str:
        accuracy, time = self.row["accuracy"].value, self.row["time_to_train_s"].value
        shown = f"{100 * (accuracy or 0.0):.1f} %, {time or 0.0:.0f} s"
        return f"{' + '.join(self.names)}: {shown}, kept with a chance of {self.chance:.2f}"


def asked_job(scale: Scale, bench: BenchJob, rate: float) -> Job:
    """Return the job that is probed and planned for: one process, the validation split, every package open."""
    return Job(
        name=job_name(scale, bench, TUNE),
        workload=ENTRY,
        recipe=recipe_of(bench, rate),
        target="none",
        mitigation="auto",
        probe={"seconds": scale.probe_s},
    )


def weigh(job: Job, profile: Profile, large_batch: int) -> list[Weighed]:
    """Return every package at the large batch, in the order of `tula_core.mitigations.packages_of`."""
    found = mitigations.packages_of(job)
    costs = {name: card.step_cost for name, card in mitigations.MITIGATIONS.items()}
    fitted = predictor.fit(profile, job, effects=mitigations.effects_of(found), step_costs=costs)
    course = Course(recipe=job.recipe, train_samples=profile.facts.train_samples, options={})
    small = Candidate(nodes=1, processes_per_node=1, local_batch=job.recipe.batch_size, mitigation=found.small)
    large = [
        staged(Candidate(nodes=1, processes_per_node=1, local_batch=large_batch, mitigation=names), course)
        for names in found.large
    ]
    rows = fitted.forecast(large)
    chances = [fitted.keeping_probability(candidate, small, KEPT_WITHIN) for candidate in large]
    return [Weighed(row=row, chance=chance or 0.0) for row, chance in zip(rows, chances, strict=True)]


def choose(weighed: Sequence[Weighed], confidence: float) -> Weighed:
    """Return the fastest of those that are sure enough, the surest where none is."""
    sure = [item for item in weighed if item.chance >= confidence]
    if sure:
        return min(sure, key=lambda item: item.row["time_to_train_s"].value or 0.0)
    return max(weighed, key=lambda item: (item.chance, item.row["accuracy"].value or 0.0))


class Choices:
    """The choices of a benchmark and the probes behind them, in a folder.

    Parameters
    ----------
    folder
        Made when the first probe is kept.
    """

    def __init__(self, scale: Scale, folder: Path) -> None:
        self._scale, self._folder = scale, folder

    def known(self, bench: BenchJob, rate: float) -> tuple[str, ...] | None:
        """Return the methods that were chosen for a job at the small batch's rate, None while none were."""
        path = self._path(bench, rate, "choice")
        return tuple(json.loads(path.read_text())["methods"]) if path.exists() else None

    def line(self, bench: BenchJob, rate: float) -> str:
        """Return what was chosen among which, in words."""
        kept = json.loads(self._path(bench, rate, "choice").read_text())
        return f"{bench.name}: {' + '.join(kept['methods'])}, of {'; '.join(kept['weighed'])}"

    def make(self, bench: BenchJob, rate: float) -> None:
        """Probe the job, unless its probe is there, and choose."""
        job, path = asked_job(self._scale, bench, rate), self._path(bench, rate, "profile")
        if not path.exists():
            print(f"probing {bench.name} for about {self._scale.probe_s:g} s", file=sys.stderr, flush=True)
            _, measured, _ = profiling.profile(job, reprofile=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            save(measured, path)
        profile = load(Profile, path)
        weighed = weigh(profiling.complete(job, profile), profile, bench.large_batch)
        chosen = choose(weighed, job.constraints.confidence)
        kept = {"methods": list(chosen.names), "weighed": [str(item) for item in weighed]}
        self._path(bench, rate, "choice").write_text(json.dumps(kept, indent=1) + "\n")
        print(self.line(bench, rate), file=sys.stderr, flush=True)

    def _path(self, bench: BenchJob, rate: float, what: str) -> Path:
        return self._folder / f"{bench.name}-{rate:g}.{what}.json"
