"""What ``auto`` chooses for a job of the benchmark, batch and methods, by the planner's forecasts from a short probe.

The probe trains on the training part alone and looks at the validation part, by the recipe with the small batch's rate.
Asked is what a plan without a target is asked, of every batch and package of methods that takes at most `STEPS_SHARE`
of the small batch's steps: of those that keep its accuracy, within half a point here, as surely as a job asks for, the
fastest; where none is as sure as that, the surest. Probe and choice are kept beside the results, so that each is made
once.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.generalization_jobs import ENTRY, TUNE, BenchJob, Scale, job_name
from tests.benchmarks.generalization_methods import CHOSEN, Row, recipe_of
from tula_core import mitigations, profiling
from tula_core.job import Job
from tula_core.mitigations import Packages
from tula_core.mitigations.batches.stages import Course, staged
from tula_core.models import predictor
from tula_core.records import Candidate, Profile, load, save
from tula_core.records import Row as Forecast

KEPT_WITHIN = 0.005
STEPS_SHARE = 0.4
_SHOWN = 4  # of what was weighed


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is trained: the batch, at which a growing one ends, and the methods."""

    batch: int
    methods: tuple[str, ...]


Chooser = Callable[[BenchJob, float, Row], Choice | None]
"""Gives the choice for a job, the small batch's rate and a row whose methods are chosen; None while it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """A batch and package with its forecast, and the chance that it keeps the small batch's accuracy, if known."""

    row: Forecast
    chance: float | None

    @property
    def choice(self) -> Choice:
        """Batch and methods."""
        return Choice(batch=self.row.candidate.global_batch, methods=self.row.candidate.mitigation)

    def __str__(self) -> str:
        accuracy, time = self.row["accuracy"].value, self.row["time_to_train_s"].value
        named = f"batch {self.choice.batch} with {' + '.join(self.choice.methods)}"
        if accuracy is None or self.chance is None:
            return f"{named}: accuracy unknown"
        return f"{named}: {100 * accuracy:.1f} %, {time or 0.0:.1f} s, kept with a chance of {self.chance:.2f}"


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


def batches(bench: BenchJob, row: Row) -> list[int]:
    """Return the batches that are open to a row, ascending.

    For ``auto``, the one that takes as many steps as are allowed, and the small batch's doublings up to the large one.

    >>> from tests.benchmarks.generalization_jobs import FULL
    >>> from tests.benchmarks.generalization_methods import ROWS
    >>> batches(FULL.jobs["digits"], ROWS["auto"]), batches(FULL.jobs["digits"], ROWS["auto-large"])
    ([64, 80, 128, 256, 512], [512])
    """
    if row.batch != CHOSEN:
        return [bench.large_batch]
    doublings = {bench.small_batch * 2**power for power in range(1, 20)}
    allowed = {math.ceil(bench.small_batch / STEPS_SHARE), bench.large_batch}
    return sorted(batch for batch in doublings | allowed if batch <= bench.large_batch)


def weigh(job: Job, profile: Profile, open_batches: Sequence[int]) -> list[Weighed]:
    """Return every package at every batch, in this order; the packages as `tula_core.mitigations.packages_of` has them.

    Several batches are those whose steps are few enough, as far as there are any.
    """
    found = mitigations.packages_of(job)
    costs = {name: card.step_cost for name, card in mitigations.MITIGATIONS.items()}
    fitted = predictor.fit(profile, job, effects=mitigations.effects_of(found), step_costs=costs)
    course = Course(recipe=job.recipe, train_samples=profile.facts.train_samples, options={})
    small = Candidate(nodes=1, processes_per_node=1, local_batch=job.recipe.batch_size, mitigation=found.small)
    asked = [
        staged(Candidate(nodes=1, processes_per_node=1, local_batch=batch, mitigation=names), course)
        for batch in open_batches
        for names in found.large
    ]
    reference, *rows = fitted.forecast([small, *asked])
    most = STEPS_SHARE * (reference["steps"].value or math.inf)
    few = [row for row in rows if (row["steps"].value or math.inf) <= most]
    kept = few if len(open_batches) > 1 and few else rows
    return [Weighed(row=row, chance=fitted.keeping_probability(row.candidate, small, KEPT_WITHIN)) for row in kept]


def choose(weighed: Sequence[Weighed], confidence: float, optimizer: str) -> Weighed:
    """Return the fastest of those that are sure enough, the surest where none is.

    Where the probe was too short for any forecast of accuracy, it is what a plan offers then, at the smallest batch.
    """
    known = [(item.chance, item) for item in weighed if item.chance is not None]
    if not known:
        offered = Packages.auto(optimizer).unaided.large
        return next(item for item in weighed if item.choice.methods in offered)
    sure = [item for chance, item in known if chance >= confidence]
    if sure:
        return min(sure, key=lambda item: item.row["time_to_train_s"].value or 0.0)
    return max(known, key=lambda pair: (pair[0], pair[1].row["accuracy"].value or 0.0))[1]


class Choices:
    """The choices of a benchmark and the probes behind them, in a folder.

    Parameters
    ----------
    folder
        Made when the first probe is kept.
    """

    def __init__(self, scale: Scale, folder: Path) -> None:
        self._scale, self._folder = scale, folder

    def known(self, bench: BenchJob, rate: float, row: Row) -> Choice | None:
        """Return what was chosen for a job at the small batch's rate, None while nothing was."""
        path = self._path(bench, rate, f"{row.name}.choice")
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        return Choice(batch=kept["batch"], methods=tuple(kept["methods"]))

    def line(self, bench: BenchJob, rate: float, row: Row) -> str:
        """Return what was chosen among which, in words."""
        kept = json.loads(self._path(bench, rate, f"{row.name}.choice").read_text())
        named = f"{bench.name}, {row.name}: batch {kept['batch']} with {' + '.join(kept['methods'])}"
        count = len(kept["weighed"])
        return f"{named}, of {count}, the surest being: {'; '.join(kept['weighed'][:_SHOWN])}"

    def make(self, bench: BenchJob, rate: float, row: Row) -> None:
        """Probe the job, unless its probe is there, and choose."""
        job, path = asked_job(self._scale, bench, rate), self._path(bench, rate, "profile")
        if not path.exists():
            print(f"probing {bench.name} for about {self._scale.probe_s:g} s", file=sys.stderr, flush=True)
            _, measured, _ = profiling.profile(job, reprofile=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            save(measured, path)
        profile = load(Profile, path)
        weighed = weigh(profiling.complete(job, profile), profile, batches(bench, row))
        chosen = choose(weighed, job.constraints.confidence, job.recipe.optimizer or "sgd").choice
        surest = sorted(weighed, key=lambda item: -(item.chance or 0.0))
        kept = {**asdict(chosen), "weighed": [str(item) for item in surest]}
        self._path(bench, rate, f"{row.name}.choice").write_text(json.dumps(kept, indent=1) + "\n")
        print(self.line(bench, rate, row), file=sys.stderr, flush=True)

    def _path(self, bench: BenchJob, rate: float, what: str) -> Path:
        return self._folder / f"{bench.name}-{rate:g}.{what}.json"
