"""How much more than usual a batch may need where memory depends on what is in the samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.records.profile import ContentMemory

Array = NDArray[np.float64]

EVEN_SPREAD = 0.02
"""Relative spread between samples from which memory is said to depend on content."""

_WORST_BATCH_SD = 4.0  # one batch in thirty thousand exceeds it, were sums of samples normal


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentMargin:
    """Relative spread and worst case of what single samples need, in units of their mean."""

    spread: float = 0.0
    worst: float = 1.0
    padded: bool = False  # one full sample makes its whole batch as large

    @classmethod
    def of(cls, content: ContentMemory | None) -> ContentMargin:
        """Return the margin that sampled needs ask for; none where they are even or nothing was sampled."""
        if content is None or content.samples < 2 or content.mean_bytes <= 0:
            return cls()
        spread, worst = content.sd_bytes / content.mean_bytes, content.worst_bytes / content.mean_bytes
        return cls(spread=spread, worst=max(worst, 1.0), padded=content.padded) if spread > EVEN_SPREAD else cls()

    @property
    def depends(self) -> bool:
        """Whether memory depends on content."""
        return self.worst > 1.0

    def factor(self, local_batch: Array) -> Array:
        """Return how much more than the mean batch the worst one may need, at least 1, shape (n,).

        min(w, 1 + z s / sqrt(b) + (w - 1) / b) with w the worst sampled case and s the spread, both relative: a batch
        of one may be the worst sample, a large one is rarely far from the mean, and none exceeds b worst samples.
        Where samples differ in shape a batch is padded to its fullest, and the factor is w whatever b.
        Empirical; z is `_WORST_BATCH_SD`.
        """
        if self.padded:
            return np.full_like(local_batch, self.worst)
        usual = 1.0 + _WORST_BATCH_SD * self.spread / np.sqrt(local_batch) + (self.worst - 1.0) / local_batch
        return np.asarray(np.minimum(self.worst, usual))
