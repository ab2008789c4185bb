"""What the steps of a launch and of a whole run took, without what came between them and without a cold start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tula_core.engine.cold_start import cold_steps
from tula_core.training.state import Progress

EARLY_STEPS = 10  # in which loading, compiling and tuning may still go on


@dataclass(slots=True)
class StepTimes:
    """Seconds of a launch's steps, evaluations and checkpoints left out; the first few are kept one by one.

    ``row`` names what trains, ``before`` is where the run was when the launch began.
    """

    row: str = ""
    before: Progress = field(default_factory=Progress)
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

    def begin(self, progress: Progress) -> None:
        """Take up a run; the times of steps that another row took are let go, they say nothing of this one's."""
        same = progress.timed_row == self.row
        self.before = replace(progress) if same else replace(progress, timed_steps=0, timed_s=0.0)

    def note(self, progress: Progress) -> None:
        """Enter the steps since the launch began into where the run is now, each with the launch's mean."""
        taken, mean_s = progress.steps - self.before.steps, self.mean_s
        timed = 0 if mean_s is None else taken
        progress.timed_row, progress.timed_steps = self.row, self.before.timed_steps + timed
        progress.timed_s = self.before.timed_s + timed * (mean_s or 0.0)

    @property
    def mean_s(self) -> float | None:
        """The mean of all steps but the first and others that were cold, None before the first."""
        if not self.early:
            return None
        steady_s = self.seconds / self.steps if self.steps else None
        warm = self.early[max(1, cold_steps(self.early, steady_s)) :] or self.early[: 1 if not self.steps else 0]
        return (self.seconds + sum(warm)) / (self.steps + len(warm))


def mean_of_run_s(final: Mapping[str, Any]) -> float | None:
    """Return the mean step over all launches of a run, by their steps; None where the seconds of some are not known.

    Parameters
    ----------
    final
        What the workers say at the end: the fields of `Progress`.

    >>> mean_of_run_s({"steps": 40, "timed_steps": 40, "timed_s": 60.0})
    1.5
    """
    timed = final.get("timed_steps", 0)
    return final["timed_s"] / timed if timed and timed == final["steps"] else None
