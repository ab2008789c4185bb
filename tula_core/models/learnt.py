"""`Learnt`: epochs and accuracy of many candidates, forecast once for each batch and each effect of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tula_core.models.blocks import in_blocks
from tula_core.models.forecasting import Band, Models, correct_epochs, epoch_band, learning_draws, metric_band
from tula_core.models.learning.effects import distinct
from tula_core.models.learning.fit import DRAWS, Learning

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_BLOCK = 512  # batches whose draws are made at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Learnt:
    """What is forecast of learning for the batches and effects that differ, and which of them each candidate has.

    Attributes
    ----------
    which
        Of each candidate, shape (n,).
    drawn
        Draws of the whole epochs that a run takes, shape (batches, draws), in the smallest type that holds the cap.
    value
        Epochs that a run is taken to need, shape (batches,).
    epochs, accuracy
        Bands of shape (batches,); accuracy is None where nothing is known of it.
    """

    which: Places
    drawn: NDArray[np.unsignedinteger]
    value: Array
    epochs: Band
    accuracy: Band | None

    @classmethod
    def of(cls, models: Models, global_batch: Array, methods: Sequence[Sequence[str]], method: Places) -> Learnt:
        """Return the forecast for candidates with these global batches, shape (n,).

        Parameters
        ----------
        methods, method
            Lists of methods, and which of them each candidate trains with.
        """
        batches, acting, which = distinct(global_batch, models.acting(methods), method)

        def learn(block: slice) -> Learnt:
            effects = None if acting is None else acting.part(block)
            return _learn(models, learning_draws(models, batches[block], effects), len(batches[block]))

        return replace(cls._joined(in_blocks(learn, len(batches), _BLOCK)), which=which)

    def at(self, places: Places) -> Learnt:
        """Return the forecast for some of the candidates."""
        return replace(self, which=self.which[places])

    @classmethod
    def _joined(cls, parts: Sequence[Learnt]) -> Learnt:
        accuracies = [part.accuracy for part in parts if part.accuracy is not None]
        return cls(
            which=np.concatenate([part.which for part in parts]),
            drawn=np.concatenate([part.drawn for part in parts]),
            value=np.concatenate([part.value for part in parts]),
            epochs=Band.joined([part.epochs for part in parts]),
            accuracy=Band.joined(accuracies) if accuracies else None,
        )


def _learn(models: Models, learning: Learning | None, count: int) -> Learnt:
    """Return the forecast for ``count`` batches from the draws of what is learnt, None where nothing is known of it."""
    draws = _epoch_draws(models, learning, count)
    corrected = correct_epochs(models, draws)
    epochs = epoch_band(models, corrected)
    value = epochs.value
    if "time_to_train_s" in models.corrections.by_quantity:  # then the total is corrected, and not through its epochs
        corrected, value = draws, epoch_band(models, draws).value
    return Learnt(
        which=np.arange(count),
        drawn=np.ascontiguousarray(corrected.T.astype(np.min_scalar_type(models.job.recipe.epochs))),
        value=value,
        epochs=epochs,
        accuracy=metric_band(models, learning),
    )


def _epoch_draws(models: Models, learning: Learning | None, count: int) -> Array:
    """Return draws of whole epochs, shape (draws, count)."""
    cap = models.job.recipe.epochs
    if models.target is None:
        return np.full((DRAWS, count), float(cap))
    if learning is None:  # nothing is known of it: any number of epochs up to the cap
        return np.repeat(np.ceil((np.arange(DRAWS) + 0.5) / DRAWS * cap)[:, None], count, axis=1)
    return learning.epochs
