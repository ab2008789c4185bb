"""How often training writes a checkpoint: the same rule for the forecast and for the run."""

from __future__ import annotations

CHECKPOINT_EVERY_S = 5.0
"""Training writes a checkpoint when this long has passed since the last one, or longer where writing is slow."""
CHECKPOINT_SHARE = 0.05
"""The most of its time that training gives to checkpoints."""


def checkpoint_wait_s(checkpoint_s: float) -> float:
    """Return the seconds from one checkpoint to the next, for checkpoints that take ``checkpoint_s`` each."""
    return max(CHECKPOINT_EVERY_S, checkpoint_s / CHECKPOINT_SHARE)
