"""The folder of a logical run: what it trains, its attempts, its checkpoint and outcome."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tula_core.errors import InputError
from tula_core.home import state_folder, tula_home, write_atomic
from tula_core.job import Job
from tula_core.records import Outcome, Plan, load, save
from tula_core.tracking.dead import under_way


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """``TULA_HOME/runs/<job_id>``."""

    path: Path

    @property
    def job_id(self) -> str:
        """The logical run's identity."""
        return self.path.name

    @property
    def plan(self) -> Plan:
        """The plan it trains; raises `InputError` where the file is damaged."""
        return load(Plan, self.path / "plan.json")

    @property
    def row_number(self) -> int:
        """The row of the plan's table it trains."""
        return int(json.loads((self.path / "run.json").read_text())["row"])

    @property
    def plan_digest(self) -> str | None:
        """The digest of the plan it trains, None where the file is damaged."""
        try:
            return str(json.loads((self.path / "run.json").read_text())["plan_digest"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def outcome(self) -> Outcome | None:
        """What it came to so far, None before its first attempt ended."""
        file = self.path / "outcome.json"
        return load(Outcome, file) if file.exists() else None

    @property
    def attempts(self) -> int:
        """How many attempts were begun."""
        return sum(1 for path in self.path.glob("attempt-*") if re.fullmatch(r"attempt-\d+", path.name))

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end."""
        outcome = self.outcome
        return outcome is not None and outcome.status == "FINISHED"


def create_run(plan: Plan, row_number: int, job_id: str | None = None) -> RunFolder:
    """Make the folder of a new logical run, or find it where ``job_id`` has one already."""
    name = job_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    folder = RunFolder(path=state_folder("runs", name))
    if not (folder.path / "run.json").exists():
        save(plan, folder.path / "plan.json")
        write_atomic(folder.path / "run.json", json.dumps({"row": row_number, "plan_digest": plan.digest}))
    return folder


def keep_row(folder: RunFolder, row_number: int) -> None:
    """Note that a run goes on at another row of its plan."""
    path = folder.path / "run.json"
    write_atomic(path, json.dumps({**json.loads(path.read_text()), "row": row_number}))


def run_folders() -> Iterator[RunFolder]:
    """Yield the folders of all logical runs, newest first."""
    runs = tula_home() / "runs"
    paths = [path for path in runs.glob("*") if (path / "run.json").exists()] if runs.exists() else []
    for path in sorted(paths, key=lambda path: (path / "run.json").stat().st_mtime, reverse=True):
        yield RunFolder(path=path)


def unfinished_run(plan: Plan) -> RunFolder:
    """Return the newest run of ``plan`` that did not finish.

    Raises
    ------
    InputError
        There is none, or it is under way.
    """
    for folder in run_folders():
        if folder.plan_digest == plan.digest and not folder.finished:
            return _not_under_way(folder)
    raise InputError(
        f"--resume: no unfinished run of this plan under {str(tula_home() / 'runs')!r}. "
        "Start it without --resume, or set TULA_HOME to where it ran."
    )


def unfinished_run_of_job(job: Job) -> RunFolder:
    """Return the newest unfinished run whose job is ``job`` with its recipe filled in.

    Raises
    ------
    InputError
        There is none, or it is under way.
    """
    for folder in run_folders():
        if _is_of(folder, job) and not folder.finished:
            return _not_under_way(folder)
    raise InputError(
        f"--resume: no unfinished run of job {job.title!r} under {str(tula_home() / 'runs')!r}. "
        "Start it without --resume, or set TULA_HOME to where it ran."
    )


def _is_of(folder: RunFolder, job: Job) -> bool:
    """Return whether a run is one of ``job``; one whose plan is damaged is of none and must not block the others."""
    try:
        return folder.plan_digest is not None and folder.plan.job.completes(job)
    except InputError:
        return False


def _not_under_way(folder: RunFolder) -> RunFolder:
    if (told := under_way(folder.path)) is not None:
        raise InputError(f"--resume: {told}")
    return folder
