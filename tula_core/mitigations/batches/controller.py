"""The batch size that the measured noise allows, changed seldom and by little at a time.

Use: where the noise scale grows while training and nobody knows by how much. Cost: that of measuring moments.
Hyperparameters: ``share`` (0.5) of the noise scale that the batch should be, ``cooldown`` (1) epochs between changes.
Evidence: 1.1 to 5 times faster convergence at a slight loss of quality (DiveBatch, arXiv 2509.16173, abstract);
without a cooldown it degrades (DEBA, arXiv 2511.03809, abstract). Source: McCandlish et al. 2018, arXiv 1812.06162,
appendix D; hysteresis and limits are Tula's own.

>>> next_batch(64, noise_scale_samples=1000.0, share=0.5, most=4096)
128
>>> next_batch(64, noise_scale_samples=140.0, share=0.5, most=4096)
64
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_OCTAVE = math.sqrt(2.0)
MOST_GROWTH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A batch size, and why."""

    batch: int
    reason: str


def next_batch(current: int, noise_scale_samples: float | None, share: float, most: int) -> int:
    """Return the batch size to go on with: the share of the noise scale, at most twice the present one.

    It changes only when the wish is more than half an octave above, and never falls: a batch that was found harmless
    early stays so while the noise grows. An unknown noise scale changes nothing.
    """
    if noise_scale_samples is None or not math.isfinite(noise_scale_samples):
        return current
    wish = share * noise_scale_samples
    if wish <= current * HALF_OCTAVE or current >= most:
        return current
    return min(most, current * MOST_GROWTH)


def decide(current: int, noise_scale_samples: float | None, share: float, most: int) -> Decision:
    """Return `next_batch` with the reason in words."""
    batch = next_batch(current, noise_scale_samples, share, most)
    if noise_scale_samples is None:
        return Decision(batch=batch, reason="the noise scale is not known yet")
    if batch > current:
        reason = f"the noise scale of {noise_scale_samples:.0f} samples allows {share * noise_scale_samples:.0f}"
    elif current >= most:
        reason = f"{most} samples are the most"
    else:
        reason = f"the noise scale of {noise_scale_samples:.0f} samples allows no more"
    return Decision(batch=batch, reason=reason)
