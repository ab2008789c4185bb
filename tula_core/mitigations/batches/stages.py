"""The stages of a plan whose batch grows: layouts within the planned one, each from a sample on.

Use: with ``growth`` and ``seesaw``, whose batches are known before the run. Cost: none. Sources: those of
`tula_core.mitigations.batches.growth`; how a batch is spread over processes, and where exactly a stage begins, is
Tula's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tula_core.job import Recipe
from tula_core.mitigations import options_of
from tula_core.mitigations.batches.growth import BatchStage, growing, seesaw
from tula_core.models.learning.schedules import schedule_factor
from tula_core.records import Candidate, Stage

Options = Mapping[str, Mapping[str, float]]

LEAST_SAMPLES = 2
"""Samples that each process has in a step at least, where the planned layout has as many: batch norm needs them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What the stages of a run depend on beside its layout: recipe, size of the training set, options by method."""

    recipe: Recipe
    train_samples: int
    options: Options

    @property
    def total_samples(self) -> int:
        """Training samples of the whole run."""
        return self.recipe.epochs * self.train_samples


def grows(names: Sequence[str]) -> bool:
    """Return whether methods grow the batch on a schedule, so that a run goes through stages."""
    return "growth" in names or "seesaw" in names


def planned_stages(names: Sequence[str], candidate: Candidate, course: Course) -> tuple[Stage, ...] | None:
    """Return the stages of a run that ends at a candidate's layout; None where its batch does not change.

    The first batch is the recipe's. The local batch grows first, then the accumulation; no stage has more of either
    than the candidate. A stage begins where a step of the one before ends, and not so near to the end of an epoch
    that a process would be left without samples.

    Parameters
    ----------
    names
        The candidate's methods; without one that grows the batch on a schedule there are no stages.
    """
    placed = _placed(names, candidate, course)
    return placed if len(placed) > 1 else None


def staged(candidate: Candidate, course: Course) -> Candidate:
    """Return a candidate with its stages, its own layout being that of the last one.

    Where a method never comes to the planned batch, as with a schedule that does not fall far enough, the layout is
    the one that it does come to.
    """
    placed = _placed(candidate.mitigation, candidate, course)
    if not placed:
        return candidate
    last = placed[-1]
    return replace(
        candidate,
        local_batch=last.local_batch,
        accumulation=last.accumulation,
        stages=placed if len(placed) > 1 else None,
    )


def begun_alone(candidate: Candidate, course: Course) -> Candidate | None:
    """Return a staged candidate that begins on one process and takes all of its own when the batch needs them.

    One process takes the batches that fit within the candidate's local batch, which is known to fit in memory, and the
    first one also where it has to accumulate for it, up to as often as the candidate does; nodes that would only share
    a small batch are not paid for meanwhile. None where that changes nothing. A job has no others planned where it
    sets ``constraints.begin_alone``.
    """
    stages = [_on_one_process(stage, candidate, number == 0) for number, stage in enumerate(candidate.stages or ())]
    if candidate.processes == 1 or not stages or processes_of(stages[0]) > 1:
        return None
    placed = place(stages, course.train_samples, course.total_samples)
    return replace(candidate, stages=placed) if len(placed) > 1 and processes_of(placed[0]) == 1 else None


def _on_one_process(stage: Stage, candidate: Candidate, may_accumulate: bool) -> Stage:
    """Return a stage on one process, or as it is where one cannot take its batch."""
    batch = batch_of(stage)
    if batch > candidate.local_batch * (candidate.accumulation if may_accumulate else 1):
        return stage
    local_batch, accumulation = share_of(batch, replace(candidate, nodes=1, processes_per_node=1))
    return replace(stage, nodes=1, processes_per_node=1, local_batch=local_batch, accumulation=accumulation)


def _placed(names: Sequence[str], candidate: Candidate, course: Course) -> tuple[Stage, ...]:
    """Return the stages, one where the batch does not change, none where no method sets it."""
    stages = [
        Stage(
            from_samples=round(stage.from_fraction * course.total_samples),
            nodes=candidate.nodes,
            processes_per_node=candidate.processes_per_node,
            local_batch=local_batch,
            accumulation=accumulation,
        )
        for stage in _batches(names, candidate.global_batch, course)
        for local_batch, accumulation in [share_of(stage.batch, candidate)]
    ]
    begun = [stage for stage in stages if stage.from_samples < course.total_samples]
    return place(begun, course.train_samples, course.total_samples) if begun else ()


def _batches(names: Sequence[str], most: int, course: Course) -> list[BatchStage]:
    recipe = course.recipe
    if "growth" in names:
        options = options_of("growth", course.options)
        return growing(recipe.batch_size, most, options["until"], options["factor"], options["start"])
    if "seesaw" in names:
        return seesaw(
            recipe.batch_size,
            most,
            lambda fraction: float(schedule_factor(recipe.schedule, fraction)),
            options_of("seesaw", course.options)["factor"],
            adaptive=recipe.optimizer != "sgd",
        )
    return []


def share_of(batch: int, candidate: Candidate) -> tuple[int, int]:
    """Return local batch and accumulation of about ``batch`` samples on a candidate's processes, within its own.

    >>> wide = Candidate(nodes=1, processes_per_node=2, local_batch=64, accumulation=4)
    >>> [share_of(batch, wide) for batch in (1, 64, 128, 256, 512)]
    [(2, 1), (32, 1), (64, 1), (64, 2), (64, 4)]
    """
    most = candidate.local_batch * candidate.accumulation
    own = min(most, max(round(batch / candidate.processes), LEAST_SAMPLES))
    accumulation = -(-own // candidate.local_batch)
    return round(own / accumulation), accumulation


def place(stages: Sequence[Stage], train_samples: int, total_samples: int) -> tuple[Stage, ...]:
    """Return the stages with their beginnings moved to where a step of the stage before ends, all within the run.

    Each goes to the nearest such place that leaves the rest of the epoch a full step of the stage before and two
    samples for every process of any stage, or to an epoch's end. A stage that another replaces there and then, or
    that changes nothing, is left out.
    """
    least = LEAST_SAMPLES * max(processes_of(stage) for stage in stages)
    placed = [stages[0]]
    for stage in stages[1:]:
        before = placed[-1]
        start = _boundary(before, stage.from_samples, least, train_samples, total_samples)
        moved = replace(stage, from_samples=start)
        if start == before.from_samples:
            placed.pop()
        if not placed or replace(moved, from_samples=placed[-1].from_samples) != placed[-1]:
            placed.append(moved)
    return tuple(placed)


def _boundary(before: Stage, wanted: int, least: int, train_samples: int, total_samples: int) -> int:
    """Return the end of a step of ``before`` that is nearest to ``wanted`` samples."""
    batch = batch_of(before)
    wanted = max(wanted, before.from_samples)
    epoch = wanted // train_samples
    begin, end = epoch * train_samples, (epoch + 1) * train_samples
    begin = max(begin, before.from_samples)
    last = max(0, end - begin - max(batch, least)) // batch
    steps = min(max(round((wanted - begin) / batch), 0), last)
    places = [begin + steps * batch] + ([end] if end < total_samples else [])
    return min(places, key=lambda place: abs(place - wanted))


def processes_of(stage: Stage) -> int:
    """Return the processes of a stage on all nodes."""
    return stage.nodes * stage.processes_per_node


def batch_of(stage: Stage) -> int:
    """Return the samples of one step of a stage."""
    return processes_of(stage) * stage.local_batch * stage.accumulation
