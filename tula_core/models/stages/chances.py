"""The chances of what a candidate learns: that it meets the target, that it keeps another candidate's metric."""

from __future__ import annotations

import numpy as np

from tula_core.models.forecasting import Models, learning_draws, wanted_epochs
from tula_core.models.learning.fit import Learning
from tula_core.models.stages.bands import staged_learning
from tula_core.models.stages.check import is_staged
from tula_core.models.stages.walk import walk
from tula_core.records.candidate import Candidate

Course = tuple[tuple[int, int], ...]
"""Global batches that a run goes through, each with the samples from which on it does."""


def course_of(candidate: Candidate) -> Course:
    """Return the global batches that a candidate trains with, each with the samples from which on it does."""
    stages = candidate.stages if is_staged(candidate) else None
    if stages is None:
        return ((0, candidate.global_batch),)
    return tuple(
        (stage.from_samples, stage.nodes * stage.processes_per_node * stage.local_batch * stage.accumulation)
        for stage in stages
    )


def reach_probability(models: Models, learning: Learning | None) -> float | None:
    """Return the chance that training reaches the target within the cap, None where there is no way to tell."""
    if models.target is None or learning is None:
        return None
    inside = wanted_epochs(models, learning.epochs) <= models.job.recipe.epochs
    return float(np.mean(learning.reached & inside))


def keeping_probability(models: Models, one: Learning | None, other: Learning | None, slack: float) -> float | None:
    """Return the chance that the metric of ``one`` candidate is at most ``slack`` worse than that of the ``other``.

    Both are looked at in the same draws: what the fit does not know of the curve, and the luck of a run, fall out of
    the difference as far as they concern both. None where there is no way to tell.
    """
    if one is None or other is None:
        return None
    better = one.metric - other.metric if models.facts.higher_is_better else other.metric - one.metric
    return float(np.mean(better >= -slack))


def learning_of(models: Models, candidate: Candidate) -> Learning | None:
    """Return draws of shape (draws, 1), None where nothing is known of learning at the candidate's batch.

    They depend on its `course_of` and on its methods alone.
    """
    if models.curve is None or candidate.global_batch > models.facts.train_samples:
        return None
    acting = models.acting([candidate.mitigation])
    if is_staged(candidate):
        course = walk(candidate.stages or (), models.facts.train_samples, models.job.recipe.epochs)
        return staged_learning(models, course, acting)
    return learning_draws(models, np.array([float(candidate.global_batch)]), acting)
