"""`LearningRateTest`: what short runs at several rates have shown."""

from __future__ import annotations

from dataclasses import dataclass

from tula_core.records.codec import Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class RateTrial:
    """Runs at one rate."""

    learning_rate: float
    losses: tuple[Reading, ...]  # over held-out samples at the end, by seed; NaN where the run diverged


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateTest:
    """Short runs from initial weights, judged on samples that are held out of the training set."""

    used: float  # the rate of all that was measured afterwards: the one found, or where refused what is stated or usual
    low: float | None  # 90 % interval; None where refused
    high: float | None
    refused: str  # why no rate was found, one or more sentences; empty where one was
    batch_size: int
    seeds: int
    steps: int  # of each run
    held_out: int  # samples
    seconds: float
    times_as_long: float = 1.0  # the recipe, against a run of the test: the rate is carried over to that length
    initial_losses: tuple[Reading, ...] = ()  # of the untrained networks, by seed
    trials: tuple[RateTrial, ...] = ()  # ascending in rate

    @property
    def found(self) -> bool:
        """Whether there is a result."""
        return not self.refused

    @property
    def summary(self) -> str:
        """What was found, or why nothing, in words without a final full stop."""
        if not self.found:
            return (
                f"the range test of the learning rate is refused: {self.refused.rstrip('.')}. Instead {self.used:.3g} "
                "is used, which may be far from the best"
            )
        return (
            f"learning rate {self.used:.2g} ({self.low:.2g}-{self.high:.2g}, {self.seeds} seeds) from a range test of "
            f"{self.seconds:.2g} s"
        )
