"""`submit`: trigger the deployed flow from Python, when a new network appears for example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from httpx import ConnectError
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from tula_core.errors import InputError, RunError
from tula_core.job import Job, load_job

POLL_S = 2.0


def submit(
    job: Job | Mapping[str, Any] | str,
    *,
    wait: bool = False,
    deployment: str = "optimize/tula",
    idempotency_key: str | None = None,
) -> FlowRun:
    """Run a job through the deployed flow on the Prefect server that ``PREFECT_API_URL`` names.

    Parameters
    ----------
    job
        A job, its plain values, or what the command line takes: a YAML file or a built-in name. It is checked here,
        before anything is sent.
    wait
        Return only when the flow run has ended, however it ended.
    deployment
        ``flow/deployment``, as `deployments/prefect.yaml` names it.
    idempotency_key
        Two calls with the same key make one flow run.

    Returns
    -------
    FlowRun
        Prefect's record of the run; with ``wait`` its ``state`` is final.

    Raises
    ------
    InputError
        The job is wrong, or the server has no such deployment.
    RunError
        The server does not answer.
    """
    if not isinstance(job, Job):
        job = load_job(job) if isinstance(job, str) else Job.from_mapping(job)
    try:
        run = run_deployment(
            deployment,
            parameters={"job": job.to_dict()},
            timeout=None if wait else 0,
            poll_interval=POLL_S,
            flow_run_name=None,
            tags=["tula", job.title],
            idempotency_key=idempotency_key,
        )
    except ObjectNotFound:
        raise InputError(
            f"deployment: {deployment!r} is not on the Prefect server {_server()}. "
            "Deploy it: prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml."
        ) from None
    except ConnectError as error:
        raise RunError(
            f"PREFECT_API_URL: the server {_server()} does not answer ({error}). "
            "Start it, or set PREFECT_API_URL to the one that has the deployment."
        ) from None
    assert isinstance(run, FlowRun) and isinstance(run.id, UUID)
    return run


def _server() -> str:
    return str(PREFECT_API_URL.value() or "of this process alone, for PREFECT_API_URL is not set")
