"""Passing the nouns between the stages: `plan`, `train`, and what the command line and the flows call beside them."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from tula_core.engine.device_lock import device_lock
from tula_core.errors import InfeasibleError, InputError, RunError
from tula_core.home import state_folder
from tula_core.job import Job, NodeType, Precision
from tula_core.progress import Event, Listener, silent
from tula_core.records import Candidate, Outcome, Plan, Profile, Row, save
from tula_core.records.candidate import PRECISION

if TYPE_CHECKING:
    from tula_core.history import RetrainReport
    from tula_core.mitigations import Packages
    from tula_core.models.predictor import Predictor
    from tula_core.search import Elsewhere
    from tula_core.tracking import FlushReport, Tracker
    from tula_core.training.folders import RunFolder
    from tula_core.training.run import Attempt

_LOG_EVERY_S = 10.0
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def profile(job: Job, *, reprofile: bool = False, listener: Listener = silent) -> tuple[Job, Profile, bool]:
    """Measure ``job`` on this machine, or take the measurements from the cache.

    Returns
    -------
    tuple
        The job with every recipe field set, the profile, and whether it came from the cache.

    Raises
    ------
    InputError
        The workload cannot be loaded or is wrong.
    RunError
        Measuring failed for another reason than memory.
    """
    _check(job)
    from tula_core import profiling

    return profiling.profile(job, reprofile=reprofile, listener=listener)


def plan(job: Job, *, profile: Profile | None = None, reprofile: bool = False, listener: Listener = silent) -> Plan:
    """Forecast every candidate and choose.

    Parameters
    ----------
    profile
        Measurements to use; None measures, or takes the cache unless ``reprofile``.

    Raises
    ------
    InputError, RunError
        As in `profile`; also where ``profile`` is another workload's.
    """
    _check(job)
    from tula_core import mitigations, profiling, search, tracking
    from tula_core.models import predictor

    if profile is None:
        resolved, measured, cached = profiling.profile(job, reprofile=reprofile, listener=listener)
    else:
        resolved, measured, cached = profiling.complete(job, profile), profile, True
    listener(Event(stage="fit", message="fitting the models", fraction=0.0))
    champion = tracking.champion()
    packages = mitigations.taught(mitigations.packages_of(resolved), champion.by_method)
    costs = {name: mitigations.step_cost([name], resolved.mitigation_options) for name in mitigations.MITIGATIONS}
    kept = mitigations.kept_copies(resolved.recipe)
    known = mitigations.effects_of(packages)
    fitted = predictor.fit(measured, resolved, champion, effects=known, step_costs=costs, kept_copies=kept)
    listener(Event(stage="fit", message="fitting the models", fraction=1.0))
    made = search.make_plan(
        measured,
        resolved,
        fitted,
        mitigation=packages,
        cached=cached,
        storage=state_folder("studies") / f"{resolved.title}.journal",
        listener=listener,
    )
    made = replace(made, facts={**made.facts, "method_response": _responses(fitted, packages, made)})
    places = [_place(fitted, measured, node) for node in resolved.what_if]
    return replace(made, what_if=search.answer_what_if(places, packages))


def _responses(fitted: Predictor, packages: Packages, made: Plan) -> dict[str, float]:
    """Return how ln of the gap answers to the cards of methods that no pilot trained with, by number of the row.

    Of the rows that differ from the choice in their methods alone; those that do not answer are left out.
    """
    from tula_core.mitigations import MITIGATIONS, effects_of
    from tula_core.models.response import method_response

    known = effects_of(packages)
    found: dict[str, float] = {}
    for number, row in enumerate(made.table):
        cards = {name: MITIGATIONS[name].effect for name in row.candidate.mitigation if name in known}
        if cards and made.choice is not None and _alike(row.candidate, made.choice.candidate):
            response = method_response(fitted.models, row.candidate, {n: c for n, c in cards.items() if c is not None})
            found |= {} if response is None else {str(number): response}
    return found


def _alike(one: Candidate, other: Candidate) -> bool:
    alike = ("nodes", "processes_per_node", "global_batch", "precision", "power_limit_w")
    return all(getattr(one, name) == getattr(other, name) for name in alike)


def _place(fitted: Predictor, measured: Profile, node: NodeType) -> Elsewhere:
    from tula_core import search
    from tula_core.models.hardware.what_if import elsewhere

    predictor, profile, job = elsewhere(fitted, measured, node)
    return search.Elsewhere(name=node.name, predictor=predictor, profile=profile, job=job)


def train(
    plan: Plan,
    *,
    row: int | None = None,
    resume: bool = False,
    job_id: str | None = None,
    listener: Listener = silent,
) -> Outcome:
    """Train at the plan's choice, record prediction and outcome, return the outcome.

    Parameters
    ----------
    row
        A row of the plan's table to train instead of the choice; with ``resume``, the row to go on at, by default the
        one the run had.
    resume
        Go on from the checkpoint of the newest unfinished run of this plan (of ``job_id`` where given).
    job_id
        The logical run this attempt belongs to; None begins a new one.

    Raises
    ------
    InputError
        The row does not exist or cannot be trained, or there is nothing to resume.
    InfeasibleError
        The plan has no choice and no row is given.
    RunError, StoppedError
        The run failed or was stopped; it is recorded with its true state first.
    """
    from tula_core import tracking
    from tula_core.training.folders import create_run, keep_row, unfinished_run
    from tula_core.training.room import require_room

    if not resume:
        _check_row(plan, plan.table[_row_number(plan, row)])
        require_room(plan, plan.table[_row_number(plan, row)])
    tracking.close_dead_runs()
    newest = resume and job_id is None
    folder = unfinished_run(plan) if newest else create_run(plan, _row_number(plan, row), job_id)
    if resume or folder.plan_digest not in (None, plan.digest):  # a logical run keeps the plan it was begun with
        plan, row = folder.plan, folder.row_number if row is None else row
    chosen = plan.table[_row_number(plan, row)]
    _check_row(plan, chosen)
    if row is not None and row != folder.row_number:
        keep_row(folder, row)
    if chosen.candidate.nodes > 1:
        message = (
            f"the {chosen.candidate.nodes} nodes are processes on this machine: what is recorded is not the speed of "
            "a cluster"
        )
        listener(Event(stage="train", message=message, level="warning"))
    _warn_of_another_machine(plan, listener)
    try:
        with device_lock("train", listener):
            outcome, error = _next_attempt(folder, plan, chosen, resume=resume, listener=listener)
    except OSError as fault:
        if fault.errno not in _OF_THE_DISK:
            raise
        raise RunError(
            f"run folder: {str(folder.path)!r} cannot be written ({fault.strerror or fault}). "
            "Free disk space or set TULA_HOME to a larger disk, then go on with --resume."
        ) from fault
    if error is not None:
        raise error
    return outcome


def _next_attempt(
    folder: RunFolder, plan: Plan, row: Row, *, resume: bool, listener: Listener
) -> tuple[Outcome, BaseException | None]:
    """Train once more, unless the run was trained to its end: whoever hands out work may hand it out twice."""
    from tula_core.search import next_best
    from tula_core.training.run import Attempt

    done = folder.outcome
    if done is not None and folder.finished:
        message = f"run {folder.job_id} was trained to its end before: its outcome is taken, nothing is trained"
        listener(Event(stage="train", message=message, level="info"))
        return done, None
    attempt = Attempt(
        plan=plan,
        row=row,
        job_id=folder.job_id,
        number=folder.attempts + 1,
        folder=folder.path,
        resume=resume and (folder.path / "checkpoint.pt").exists(),
        next_best=next_best,
    )
    attempt.task_folder.mkdir(parents=True)
    return _attempt(attempt, listener)


def _warn_of_another_machine(plan: Plan, listener: Listener) -> None:
    """Say where a plan for processors was measured on others; another kind of device is found once training begins."""
    from tula_core.engine.hardware import available_cores, processor_name

    planned, here = plan.hardware, (processor_name(), available_cores())
    if planned.get("device") == "cpu" and (planned["device_name"], planned["cores"]) != here:
        message = (
            f"the plan was measured on {planned['device_name']} with {planned['cores']} cores, this is {here[0]} with "
            f"{here[1]}: its forecasts of time and cost may not hold here"
        )
        listener(Event(stage="train", message=message, level="warning"))


def _attempt(attempt: Attempt, listener: Listener) -> tuple[Outcome, BaseException | None]:
    """Train, and record the forecast before and the outcome after."""
    from tula_core import tracking
    from tula_core.training.run import run_attempt

    plan, folder, number = attempt.plan, attempt.folder, attempt.number
    tracker = _tracker(plan, attempt.job_id)
    tracking.open_attempt(folder, plan, attempt.job_id, number, attempt.row)
    _warn(tracker.start(plan, attempt.row, number), listener)
    points = _PointLog(tracker)
    outcome, error = run_attempt(attempt, listener, points)
    points.flush()
    save(outcome, folder / "outcome.json")
    listener(Event(stage="track", message="recording the outcome", fraction=0.0))
    _warn(tracker.finish(outcome), listener)
    tracking.close_attempt(folder, number, outcome.status)
    listener(Event(stage="track", message="recorded", fraction=1.0))
    return outcome, error


def resume_plan(job: Job) -> tuple[Plan, str]:
    """Return the plan and the job id of the newest unfinished run of ``job``; `InputError` where there is none."""
    from tula_core.training.folders import unfinished_run_of_job

    folder = unfinished_run_of_job(job)
    return folder.plan, folder.job_id


def outcomes() -> list[Outcome]:
    """Return every outcome on record, oldest first; runs found dead are closed and recorded first."""
    from tula_core import tracking
    from tula_core.history import sync

    tracking.close_dead_runs(send=False)
    return sync()


def retrain(*, listener: Listener = silent) -> RetrainReport:
    """Fit corrections from all outcomes, check them on jobs left out, promote them if they are better."""
    from tula_core import tracking
    from tula_core.history import adopt, sync
    from tula_core.history import retrain as fit_and_check

    tracking.sync_champion()
    tracking.close_dead_runs(send=False)
    report = fit_and_check(sync(listener=listener), tracking.champion())
    return adopt(report, listener=listener)


def _check(job: Job) -> None:
    """Refuse at once what the job alone shows to be wrong; measuring takes minutes."""
    from tula_core import mitigations
    from tula_core.search.alone import check_begin_alone
    from tula_core.search.constraints import check_price

    mitigations.resolve(job)
    check_price(job)
    check_begin_alone(job)


def _warn(report: FlushReport, listener: Listener) -> None:
    if report.problem is not None:
        waits = f"; {report.left} records wait in the spool and are sent later" if report.left else ""
        listener(Event(stage="track", message=f"{report.problem}{waits}", level="warning"))


def _row_number(plan: Plan, row: int | None) -> int:
    if row is None:
        if plan.choice_index is None:
            raise InfeasibleError(f"plan: no candidate is feasible. {plan.reason}")
        return plan.choice_index
    if not 0 <= row < len(plan.table):
        raise InputError(f"--choose: row {row} does not exist. The plan's table has rows 0 to {len(plan.table) - 1}.")
    if plan.table[row]["step_time_s"].value is None:
        because = plan.table[row].infeasible_because or "it has no forecast"
        raise InputError(f"--choose: row {row} cannot be trained: {because}. Choose another row of the table.")
    return row


def _check_row(plan: Plan, row: Row) -> None:
    """Refuse methods and options that no plan of Tula's holds: a plan is a file, and may have been edited."""
    from tula_core import mitigations

    candidate, job = row.candidate, plan.job
    for name in candidate.options:
        if name != PRECISION:
            raise InputError(f"plan: the row's option {name!r} is unknown. Known: {PRECISION}. Leave it out.")
    if candidate.precision not in (None, *get_args(Precision)):
        raise InputError(
            f"plan: the row's precision {candidate.precision!r} is unknown. Known: {', '.join(get_args(Precision))}."
        )
    mitigations.check_together(candidate.mitigation, job.recipe.optimizer)
    used = {name: job.mitigation_options[name] for name in candidate.mitigation if name in job.mitigation_options}
    mitigations.check_options(candidate.mitigation, used)


def _tracker(plan: Plan, job_id: str) -> Tracker:
    from tula_core import tracking

    return tracking.Tracker(
        plan.job.title,
        job_id,
        plan.job.digest,
        str(plan.facts.get("workload", plan.job.title)),
        str(plan.hardware["fingerprint"]),
        plan.predictor,
    )


class _PointLog:
    """Gathers curve points and hands them to the tracker now and then, so that the parent stays quiet."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._points: list[tuple[int, Mapping[str, float]]] = []
        self._logged_at = time.monotonic()

    def __call__(self, samples: int, figures: Mapping[str, float]) -> None:
        self._points.append((samples, figures))
        if time.monotonic() - self._logged_at > _LOG_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Hand over what is there."""
        if self._points:
            self._tracker.log_progress(self._points)
        self._points = []
        self._logged_at = time.monotonic()
