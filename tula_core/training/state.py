"""`Progress`: where a run is, as it stands in its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """Where a run is; all of it is in the checkpoint, as plain values."""

    samples: int = 0
    skipped_samples: int = 0  # of steps whose scaled gradients overflowed; the schedule does not move for them
    steps: int = 0
    reductions: int = 0  # of the rate of the methods in force
    initial_loss: float | None = None
    train_loss: float = 0.0
    elapsed_s: float = 0.0
    target_reached: bool = False
    batch: int | None = None  # global batch that a method has chosen
    measured_steps: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    highest_rate: float = 0.0  # of any step since the last reduction or change of methods, unreduced
    method: int = 0  # how often the methods were changed
    stages: list[dict[str, int]] = field(default_factory=list)  # the layouts that trained, as fields of `Stage`
    good_samples: int = 0  # of the checkpoint that a change of method would go on from
    timed_row: str = ""  # whose steps are timed
    timed_steps: int = 0  # all of `steps` where that row took them
    timed_s: float = 0.0  # what they took, each by the mean of its launch

    def enter(self, stage: dict[str, int]) -> bool:
        """Note the layout that trains from now on; False where it is the one that did."""
        same = self.stages and {**self.stages[-1], "from_samples": stage["from_samples"]} == stage
        if not same:
            self.stages = [kept for kept in self.stages if kept["from_samples"] < stage["from_samples"]] + [stage]
        return not same

    def begin_methods(self, number: int) -> None:
        """Let go what belongs to the methods before: others take over."""
        self.method, self.reductions, self.batch, self.measured_steps = number, 0, None, 0
        self.highest_rate = 0.0
