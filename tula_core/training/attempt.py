"""`Attempt`: one try at training a plan's row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tula_core.records import Plan, Row
from tula_core.tracking.spent import attempt_folder
from tula_core.training.fallback.next_row import NextBest, no_other


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try at a logical run.

    Attributes
    ----------
    plan, row
        The plan and the chosen row of its table.
    job_id
        The logical run, kept by resume and retries.
    number
        1 for the first try.
    folder
        The logical run's folder: checkpoint, one subfolder per attempt, ``outcome.json``.
    resume
        Whether to go on from the checkpoint that is there.
    next_best
        Finds the row to go on with where the methods of ``row`` prove wrong.
    """

    plan: Plan
    row: Row
    job_id: str
    number: int
    folder: Path
    resume: bool
    next_best: NextBest = no_other

    @property
    def task_folder(self) -> Path:
        """Where this attempt's config, logs and events are."""
        return attempt_folder(self.folder, self.number)
