"""What the steps of an attempt took, without what came between them and without a cold start."""

from __future__ import annotations

from dataclasses import dataclass, field

from tula_core.engine.cold_start import cold_steps

EARLY_STEPS = 10  # in which loading, compiling and tuning may still go on


@dataclass(slots=True)
class StepTimes:
    """Seconds of this attempt's steps, evaluations and checkpoints left out; the first few are kept one by one."""

    early: list[float] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0

    @property
    def early_yet(self) -> bool:
        """Whether the next step is one of the first few."""
        return len(self.early) < EARLY_STEPS

    def add(self, seconds: float) -> None:
        """Add a step."""
        if self.early_yet:
            self.early.append(seconds)
        else:
            self.seconds += seconds
            self.steps += 1

    @property
    def mean_s(self) -> float | None:
        """The mean of all steps but the first and others that were cold, None before the first."""
        if not self.early:
            return None
        steady_s = self.seconds / self.steps if self.steps else None
        warm = self.early[max(1, cold_steps(self.early, steady_s)) :] or self.early[: 1 if not self.steps else 0]
        return (self.seconds + sum(warm)) / (self.steps + len(warm))
