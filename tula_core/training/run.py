"""Training a plan's row in worker processes, heard from the parent, into an `Outcome`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import RunError, StoppedError
from tula_core.progress import Listener
from tula_core.records import Candidate, MethodChange, Outcome, Row
from tula_core.tracking.spent import (
    CHANGES_FILE,
    attempt_folder,
    launched_from,
    part_folder,
    part_seconds,
    ran_on,
    seconds_by_nodes,
)
from tula_core.training.attempt import Attempt
from tula_core.training.fallback.changes import Course, course_of, keep_course
from tula_core.training.fallback.next_row import next_row
from tula_core.training.fallback.watch import GOOD_FILE, drop_good
from tula_core.training.fallback.words import cause_words
from tula_core.training.hearing import Hearing, PointHandler
from tula_core.training.relaunch import Joined, World, worlds_left, worlds_of
from tula_core.training.result import Status, outcome_of
from tula_core.training.step_times import mean_of_run_s

__all__ = ["ENTRY", "Attempt", "PointHandler", "run_attempt"]

_LAYOUT = ("nodes", "processes_per_node", "local_batch", "accumulation")
_CHECKPOINT = "checkpoint.pt"
ENTRY = "tula_core.training.worker:run_in_worker"


def run_attempt(attempt: Attempt, listener: Listener, on_point: PointHandler) -> tuple[Outcome, BaseException | None]:
    """Train and return the outcome of all attempts so far, with the error that ended this one, None if none did.

    ``on_point`` gets (training samples seen, figures) as they come. An interrupt or a stop signal is returned like any
    other error, after the workers have written a checkpoint. Where the job leaves the methods to Tula and they prove
    wrong, the run goes on at the next best row.
    """
    running = _Running.begin(attempt, Hearing(attempt, listener, on_point))
    error = running.to_the_end()
    return running.outcome(error), error


@dataclass(slots=True)
class _Running:
    """An attempt under way: the worlds that are left, and what those before came to."""

    attempt: Attempt
    hearing: Hearing
    course: Course
    worlds: list[World]
    by_nodes: dict[int, float]  # seconds of all attempts
    joined: Joined = field(default_factory=Joined)
    spans_s: list[float] = field(default_factory=list)
    result: LaunchResult | None = None

    @classmethod
    def begin(cls, attempt: Attempt, hearing: Hearing) -> _Running:
        """Return an attempt whose processes have not yet been started."""
        course = _begun(attempt, hearing)
        return cls(
            attempt=attempt,
            hearing=hearing,
            course=course,
            worlds=_worlds(attempt, course),
            by_nodes=seconds_by_nodes(attempt.folder, attempt.number - 1, attempt.row.candidate.nodes),
        )

    def to_the_end(self) -> BaseException | None:
        """Train through all worlds; return what ended the attempt before its end, None where nothing did."""
        try:
            while self.worlds:
                if (failed := self._train(self.worlds.pop(0))) is not None:
                    return failed
            drop_good(self.attempt.folder / _CHECKPOINT)
            self.hearing.end()
        except (KeyboardInterrupt, StoppedError) as stop:
            return stop
        except OSError as fault:  # the attempt has failed and is recorded as that, where anything can be written at all
            error = RunError(
                f"run folder: {str(self.attempt.folder)!r} cannot be written ({fault.strerror or fault}). "
                "Free disk space or set TULA_HOME to a larger disk, then go on with --resume."
            )
            error.__cause__ = fault
            return error
        return None

    def _train(self, world: World) -> BaseException | None:
        """Train one world and see what comes after it; return why its processes failed, None where they did not."""
        part = part_folder(self.attempt.task_folder, len(self.spans_s) + 1)
        if self.spans_s:
            self.hearing.relaunch(world)
        self.result = None
        try:
            self.hearing.launched()
            self.result = launch(_task(self.attempt, self.course, world, part), self.hearing)
        finally:
            self.spans_s.append(part_seconds(part) if self.result is None else self.result.seconds)
            self.by_nodes[world.nodes] = self.by_nodes.get(world.nodes, 0.0) + self.spans_s[-1]
        if self.result.result is None:
            return None if self.result.failure is None else self.result.failure.to_error()
        found = self.result.result
        self.joined.add(found, self.hearing.steps_before)
        if found.get("given_up"):
            self.course = _changed(self.attempt, self.course, found, self.hearing, self.by_nodes)
            self.worlds = list(worlds_left(worlds_of(self.course.row.candidate), self.course.from_samples))
        elif found.get("target_reached"):
            self.worlds = []
        return None

    def outcome(self, error: BaseException | None) -> Outcome:
        """Return the outcome of all attempts so far."""
        status: Status = "FINISHED" if error is None else _status(error, self.result)
        final = self.joined.final() if error is None else {}
        if self.attempt.resume and len(self.course.row.candidate.stages or ()) > 1:
            # The mean of this attempt is that of the later stages alone, which no row forecast.
            final = {**final, "step_time_s": mean_of_run_s(final) if _on_one_machine(self.attempt) else None}
        return outcome_of(self.hearing, self.course, status, error, final, self.by_nodes, self.spans_s[:-1])


def _begun(attempt: Attempt, hearing: Hearing) -> Course:
    """Return the rows that the run has had so far."""
    if not attempt.resume:
        (attempt.folder / CHANGES_FILE).unlink(missing_ok=True)
        return Course(rows=(attempt.row,))
    course = course_of(attempt.row, attempt.folder)
    hearing.take(course.row, course.from_samples)
    return course


def _worlds(attempt: Attempt, course: Course) -> list[World]:
    """Return the worlds that are left of a run."""
    worlds = worlds_of(course.row.candidate)
    if not attempt.resume:
        return list(worlds)
    launched = launched_from(attempt.folder, attempt.number - 1, len(course.changes))
    return list(worlds_left(worlds, max(launched, course.from_samples)))


def _changed(
    attempt: Attempt, course: Course, result: Mapping[str, Any], hearing: Hearing, by_nodes: Mapping[int, float]
) -> Course:
    """Return the course with the next best row, kept in the run's folder, and say so."""
    report, row = result["given_up"], _next(attempt, course)
    assert row is not None, "workers give up only where another row is left"
    fell = report["cause"] != "diverged" and (attempt.folder / GOOD_FILE).exists()
    samples = int(result["good_samples"] if fell else result["samples"])
    old, new = course.row.candidate, row.candidate
    change = MethodChange(
        samples=samples,
        epochs=samples / int(attempt.plan.facts["train_samples"]),
        seen_at_samples=int(report["samples"]),
        dropped=old.mitigation,
        taken=new.mitigation,
        dropped_batch=old.global_batch,
        taken_batch=new.global_batch,
        cause=report["cause"],
        because=cause_words(report, str(attempt.plan.facts["metric"])),
    )
    course = course.then(row, change, GOOD_FILE if fell else _CHECKPOINT)
    keep_course(course, attempt.folder)
    node_hours = sum(nodes * seconds for nodes, seconds in by_nodes.items()) / 3600
    hearing.change(row, change, (sum(by_nodes.values()), node_hours))
    hearing.on_point(samples, {"method_changes": float(len(course.changes))})
    return course


def _next(attempt: Attempt, course: Course) -> Row | None:
    """Return the row to go on with should the one in force prove wrong, None where it is to be kept."""
    if attempt.plan.job.mitigation != "auto":
        return None
    return next_row(attempt.plan, course.row, course.tried, attempt.next_best)


def _status(error: BaseException, result: LaunchResult | None) -> Status:
    killed = isinstance(error, (KeyboardInterrupt, StoppedError))
    killed = killed or (
        result is not None and result.failure is not None and result.failure.kind in ("killed", "stopped")
    )
    return "KILLED" if killed else "FAILED"


def _on_one_machine(attempt: Attempt) -> bool:
    """Return whether all attempts ran on the same hardware, as far as their workers said."""
    folders = (attempt_folder(attempt.folder, number) for number in range(1, attempt.number + 1))
    return len({found for folder in folders if (found := ran_on(folder)) is not None}) <= 1


def _name_of(candidate: Candidate) -> str:
    """Return sixteen hex digits over all that tells a row's way to train from another's."""
    return hashlib.sha256(repr(candidate).encode()).hexdigest()[:16]


def _task(attempt: Attempt, course: Course, world: World, folder: Path) -> WorkerTask:
    plan, candidate = attempt.plan, course.row.candidate
    first = not course.changes
    return WorkerTask(
        entry=ENTRY,
        payload={
            "job": plan.job.in_precision(candidate.precision).to_dict(),
            **world.payload(),
            "row": _name_of(candidate),
            "planned": [getattr(attempt.row.candidate, name) for name in _LAYOUT],
            "global_batch": candidate.global_batch,
            "mitigation": list(candidate.mitigation),
            "checkpoint": str(attempt.folder / _CHECKPOINT),
            "resume": attempt.resume or folder != attempt.task_folder,
            "train_samples": int(plan.facts["train_samples"]),
            "sample_shape": plan.facts.get("sample_shape"),
            "data_sample": plan.facts.get("data_sample"),
            "power_limit_w": candidate.power_limit_w,
            # Of the plan's choice alone it is known what each epoch should show.
            "expected": plan.facts.get("expected_curve") if first and course.row == plan.choice else None,
            "gives_up": _next(attempt, course) is not None,
            **course.payload(attempt.folder),
        },
        folder=folder,
        nodes=world.nodes,
        processes_per_node=world.processes_per_node,
        threads=int(plan.hardware["threads_per_process"]),
    )
