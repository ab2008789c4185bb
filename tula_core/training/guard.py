"""Deciding, on all processes alike, whether to go on: divergence, a request to stop, a checkpoint that is due."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import summed_loss
from tula_core.models.checkpoints import checkpoint_wait_s

WATCHED_STEPS = 20  # the first steps are each looked at: most divergences happen there
CHECK_EVERY_S = 0.5
MOST_REDUCTIONS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all processes agreed on; ``loss`` is the mean over the samples since the last check."""

    loss: float
    diverged: bool
    stop: bool
    checkpoint_due: bool
    samples_per_s: float


def has_diverged(loss: float, initial_loss: float) -> bool:
    """Return whether ``loss`` is non-finite, or far above where the run began.

    Four times the initial loss and one more: a loss that starts near zero may rise by noise alone.
    """
    return not math.isfinite(loss) or loss > 4 * abs(initial_loss) + 1


class Guard:
    """Adds up the loss and every few steps asks all processes once, in one all-reduce of a few numbers."""

    def __init__(self, context: WorkerContext, initial_loss: float | None) -> None:
        self._context = context
        self.initial_loss = initial_loss
        self._steps = 0
        self._next = 1
        self._window_start = 0
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []
        self._checked_at = self._saved_at = time.perf_counter()
        self._save_s = 0.0

    def add(self, losses: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Take the mean losses, shape ``()``, of this process's micro-batches; does not wait for the device."""
        self._steps += 1
        # Added up when asked for: one sum costs less than one at each step.
        self._losses += losses
        self._sizes += sizes

    @property
    def due(self) -> bool:
        """Whether the next check is due; the same on every process."""
        return self._steps >= self._next

    def saved(self, seconds: float) -> None:
        """Note that a checkpoint was just written in ``seconds``."""
        self._save_s = seconds
        self._saved_at = time.perf_counter()

    def go_on(self) -> None:
        """Begin the clock anew: what came between two steps, an evaluation or a checkpoint, is not training."""
        self._checked_at = time.perf_counter()

    def check(self) -> Verdict:
        """Agree with the other processes; all must call it after the same step."""
        now = time.perf_counter()
        elapsed = max(now - self._checked_at, 1e-9)
        wait_s = checkpoint_wait_s(self._save_s)
        mine = [
            float(summed_loss(self._losses, self._sizes)) if self._losses else 0.0,
            float(sum(self._sizes)),
            1.0 if self._context.stop_signal is not None else 0.0,
            elapsed / max(self._steps - self._window_start, 1) if self._context.rank == 0 else 0.0,
            1.0 if self._context.rank == 0 and now - self._saved_at > wait_s else 0.0,
        ]
        loss, samples, stop, step_s, checkpoint_due = self._context.all_reduce_sum(mine)
        mean = loss / samples if samples else math.nan
        if self.initial_loss is None:
            self.initial_loss = mean
        verdict = Verdict(
            loss=mean,
            diverged=has_diverged(mean, self.initial_loss),
            stop=stop > 0,
            checkpoint_due=checkpoint_due > 0,
            samples_per_s=samples / elapsed,
        )
        self._begin_window(step_s)
        return verdict

    def _begin_window(self, step_s: float) -> None:
        self._window_start = self._steps
        self._losses, self._sizes = [], []
        self._checked_at = time.perf_counter()
        wait = 1 if self._steps < WATCHED_STEPS else max(1, round(CHECK_EVERY_S / max(step_s, 1e-6)))
        self._next = self._steps + wait
