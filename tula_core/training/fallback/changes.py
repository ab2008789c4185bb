"""Which rows a run has trained one after the other: kept in its folder, so that a resumed run goes on with the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tula_core.errors import InputError
from tula_core.home import write_atomic
from tula_core.records import Candidate, MethodChange, Row
from tula_core.records.outcome import method_words
from tula_core.tracking.spent import CHANGES_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The rows of a run: the one it was begun with, then each that took over.

    Attributes
    ----------
    rows
        At least one; the last is in force.
    changes
        One fewer than rows.
    checkpoint
        What the row in force took its weights from.
    """

    rows: tuple[Row, ...]
    changes: tuple[MethodChange, ...] = ()
    checkpoint: str = ""

    @property
    def row(self) -> Row:
        """The row in force."""
        return self.rows[-1]

    @property
    def tried(self) -> tuple[Candidate, ...]:
        """The candidates of all rows."""
        return tuple(row.candidate for row in self.rows)

    @property
    def from_samples(self) -> int:
        """Where the row in force took over."""
        return self.changes[-1].samples if self.changes else 0

    def then(self, row: Row, change: MethodChange, checkpoint: str) -> Course:
        """Return the course with one more row."""
        return Course(rows=(*self.rows, row), changes=(*self.changes, change), checkpoint=checkpoint)

    def payload(self, folder: Path) -> dict[str, Any]:
        """Return what workers are told of it."""
        if not self.changes:
            return {"method": 0}
        change = self.changes[-1]
        note = {
            "methods": method_words(change.taken),
            "dropped": method_words(change.dropped),
            "because": change.because,
        }
        return {
            "method": len(self.changes),
            "taken_over": {"checkpoint": str(folder / self.checkpoint), "note": note},
        }


def keep_course(course: Course, folder: Path) -> None:
    """Write the course into the run's folder."""
    told = {
        "schema_version": 1,
        "rows": [row.to_dict() for row in course.rows],
        "changes": [asdict(change) for change in course.changes],
        "checkpoint": course.checkpoint,
    }
    write_atomic(folder / CHANGES_FILE, json.dumps(told, indent=2) + "\n")


def course_of(row: Row, folder: Path) -> Course:
    """Return the course of the run in ``folder`` that was begun with ``row``.

    Where a person asks for another row than that, it takes the place of the one in force.

    Raises
    ------
    InputError
        The file is damaged.
    """
    path = folder / CHANGES_FILE
    if not path.exists():
        return Course(rows=(row,))
    try:
        told = json.loads(path.read_bytes())
        found = Course(
            rows=tuple(Row.from_dict(entry) for entry in told["rows"]),
            changes=tuple(MethodChange.from_dict(entry) for entry in told["changes"]),
            checkpoint=str(told["checkpoint"]),
        )
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(
            f"resume: {str(path)!r} is damaged ({type(error).__name__}: {error}). Start the run anew without --resume."
        ) from error
    return found if found.rows[0] == row else replace(found, rows=(*found.rows[:-1], row))
