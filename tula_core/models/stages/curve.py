"""What a run is expected to be evaluated at along its way, of one batch or of several."""

from __future__ import annotations

import numpy as np

from tula_core.models.forecasting import Models, corrected_metric
from tula_core.models.stages.walk import walk
from tula_core.records.candidate import Candidate, ExpectedPoint, Stage


def expected_curve(models: Models, candidate: Candidate) -> tuple[ExpectedPoint, ...] | None:
    """Return the metric at the end of each epoch with its 90 % interval; None where nothing is known of it.

    The draws are those of the row's accuracy: errors of the fit, of the batch, of methods, of one run and of one
    evaluation. A target does not end it, so that a run which misses its target can be held against it to the end.
    """
    facts = models.facts
    if models.curve is None or candidate.global_batch > facts.train_samples:
        return None
    course = walk(candidate.stages or (_whole(candidate),), facts.train_samples, models.job.recipe.epochs)
    epochs, metric = models.curve.evaluations(
        course.shapes.global_batch,
        course.samples,
        schedule=models.job.recipe.schedule,
        effects=models.acting([candidate.mitigation]),
    )
    band = corrected_metric(models, models.curve, metric)
    columns = np.stack([epochs, band.low, band.value, band.high], axis=1).tolist()
    return tuple(ExpectedPoint(epochs=int(at), low=low, value=value, high=high) for at, low, value, high in columns)


def _whole(candidate: Candidate) -> Stage:
    """Return a candidate's own layout as the one stage of its run."""
    return Stage(
        from_samples=0,
        nodes=candidate.nodes,
        processes_per_node=candidate.processes_per_node,
        local_batch=candidate.local_batch,
        accumulation=candidate.accumulation,
    )
