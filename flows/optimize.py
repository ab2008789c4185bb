"""The flow ``optimize``: profile, plan, train, each a task whose body is one call of the core.

Tasks take plain JSON values only, so that their cache keys can be computed and are stable. What is cached, and by what:

- ``profile`` and ``train`` within their flow run, so that a retried flow run does not measure or train again. Across
  runs the core keeps profiles itself, by fingerprints of code, data, hardware and versions that Prefect cannot see.
- ``plan`` also across runs, by the job, the measured profile, the predictor and the source that turns them into a plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import Task, flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import DEFAULT, CacheKeyFnPolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run

import tula_core
from flows import plain_errors
from flows.artifacts import artifact_key, plan_markdown, plan_rows
from flows.signals import keep_stopping_on_signals
from flows.watch import watcher_or_log
from tula_core import api
from tula_core.errors import DivergedError, InfeasibleError, OutOfMemoryError, RunError
from tula_core.home import tula_home
from tula_core.job import Job
from tula_core.records import Outcome, Plan, Profile, from_json, to_json

RETRY_DELAY_S = 2.0

plain_errors.install()


def retry_can_help(failed: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Return whether a failed task is worth another attempt.

    A process that died is. A wrong input, an infeasible job and a stop by a signal are not; nor is what would end the
    same way again: too little memory, and a loss that diverged at every permitted rate.
    """
    return isinstance(state.data, RunError) and not isinstance(state.data, (OutOfMemoryError, DivergedError))


def plan_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Return the key under which a plan is cached: a digest of everything that a plan follows from."""
    champion = tula_home() / "champion.json"
    predictor = champion.read_text(encoding="utf-8") if champion.exists() else "built-in"
    parts = (json.dumps(parameters, sort_keys=True), predictor, source_digest())
    return "tula-plan-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def source_digest() -> str:
    """Return a digest of the library's source, so that a cached result does not outlive the code that made it."""
    digest = hashlib.sha256()
    root = Path(tula_core.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@task(
    name="profile",
    persist_result=True,
    result_serializer="json",
    cache_policy=DEFAULT,
    retries=1,
    retry_delay_seconds=RETRY_DELAY_S,
    retry_condition_fn=retry_can_help,
)
def profile_task(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the job's step time, memory, communication and noise."""
    watcher = watcher_or_log(get_run_logger())
    with keep_stopping_on_signals():
        _, measured, cached = api.profile(Job.from_mapping(job), listener=watcher.event)
    return {"profile": plain(measured), "cached": cached}


@task(
    name="plan",
    persist_result=True,
    result_serializer="json",
    cache_policy=CacheKeyFnPolicy(cache_key_fn=plan_key),
)
def plan_task(job: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    """Fit the predictor to the profile and search."""
    watcher = watcher_or_log(get_run_logger())
    measured = from_json(Profile, json.dumps(profile), source="profile")
    with keep_stopping_on_signals():
        return plain(api.plan(Job.from_mapping(job), profile=measured, listener=watcher.event))


@task(
    name="train",
    persist_result=True,
    result_serializer="json",
    cache_policy=DEFAULT,
    retries=2,
    retry_delay_seconds=RETRY_DELAY_S,
    retry_condition_fn=retry_can_help,
)
def train_task(plan: dict[str, Any], job_id: str, resume: bool) -> dict[str, Any]:
    """Train at the plan's choice; a retry goes on from the last checkpoint as a new attempt of the same run."""
    watcher = watcher_or_log(get_run_logger())
    made = from_json(Plan, json.dumps(plan), source="plan")
    again = int(task_run.run_count or 1) > 1
    with keep_stopping_on_signals():
        return plain(api.train(made, resume=resume or again, job_id=job_id, listener=watcher.event))


@flow(name="optimize", persist_result=True, result_serializer="json")
def optimize(job: dict[str, Any], job_id: str | None = None, resume: bool = False) -> dict[str, Any]:
    """Take a job from the first measurement to the outcome.

    Parameters
    ----------
    job
        The job as plain values, as `tula_core.Job.to_dict` gives it.
    job_id
        The identity of the logical run, kept by retries; by default the flow run's.
    resume
        Go on with the newest unfinished run of this job; its plan and its identity are kept.

    Returns
    -------
    dict
        The outcome as plain values; `tula_core.records.Outcome` has the names.

    Raises
    ------
    InputError
        The job is wrong.
    InfeasibleError
        No candidate satisfies every constraint; the plan is in the run's artifacts.
    RunError
        A process failed at every attempt.
    """
    asked = Job.from_mapping(job)
    # The flow run's own id, so that a flow run that Prefect retries stays one logical job.
    identity = job_id or str(flow_run.id)
    if resume:
        made, identity = api.resume_plan(asked)
    else:
        made = make_plan(asked.to_dict())
    show_plan(made)
    if made.choice is None:
        raise InfeasibleError(f"nothing is feasible: {made.reason}")
    return train_task(plain(made), identity, resume)


def make_plan(job: dict[str, Any]) -> Plan:
    """Profile and plan; the plan says whether its profile was measured in this flow run."""
    measured = profile_task(job)
    made = Plan.from_dict(plan_task(job, measured["profile"]))
    return replace(made, probe=replace(made.probe, cached=measured["cached"]))


def show_plan(made: Plan) -> None:
    """Tell the watcher of the plan and leave it as artifacts of the flow run."""
    watcher_or_log(get_run_logger()).planned(made)
    title = made.job.title
    key = artifact_key(title)
    create_table_artifact(table=plan_rows(made), key=f"{key}-forecast", description=f"Forecast for {title}")
    create_markdown_artifact(markdown=plan_markdown(made), key=f"{key}-plan", description=f"Plan for {title}")


def plain(record: Profile | Plan | Outcome) -> dict[str, Any]:
    """Return a record as plain JSON values."""
    values: dict[str, Any] = json.loads(to_json(record))
    return values
