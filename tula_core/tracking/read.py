"""Reading outcomes back from MLflow and from the spool."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tula_core.errors import InputError, RunError
from tula_core.records import Outcome, from_json
from tula_core.tracking import keys, spool, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """An outcome as MLflow holds it, with the run of its attempt and when the store got it (seconds since 1970)."""

    run_id: str
    recorded_at_s: float
    outcome: Outcome


def recorded_outcomes(
    since_s: float = 0.0,
    known: Mapping[str, float] | None = None,
    skip: Callable[[str, str], None] = lambda run_id, reason: None,
) -> Iterator[Recorded]:
    """Yield the outcomes of every attempt that the store got after ``since_s``, the earliest first.

    The time is the one at which the store got an outcome, not when the run ended: an outcome that waited in a spool
    for days is new all the same.

    Parameters
    ----------
    known
        Runs to leave out: their ids with the time at which the caller's copy was recorded.
    skip
        Called with a run's id and a reason for an outcome that cannot be read.

    Raises
    ------
    RunError
        The store cannot be reached, or fails half-way.
    """
    uri = store.tracking_uri()
    if store.is_missing(uri):
        return
    if not store.reachable(uri):
        raise RunError(f"MLflow at {store.shown_uri(uri)} cannot be reached. Start the server or mend the address.")
    client = store.client(uri)
    from mlflow.exceptions import MlflowException

    try:
        for run in _attempts(client, since_s):
            run_id, at_s = run.info.run_id, run.data.metrics[keys.RECORDED_AT]
            if known is not None and known.get(run_id) == at_s:
                continue
            try:
                text = artifact(client, run_id, keys.OUTCOME_FILE)
                outcome = from_json(Outcome, text, source=f"MLflow run {run_id}")
            except InputError as error:
                skip(run_id, str(error))
                continue
            yield Recorded(run_id=run_id, recorded_at_s=at_s, outcome=outcome)
    except MlflowException as error:
        raise RunError(f"MLflow at {store.shown_uri(uri)} failed while it was read ({error}). Try again.") from error


def pending_outcomes() -> Iterator[Outcome]:
    """Yield the outcomes that wait in the spool."""
    for operation in spool.operations():
        if operation.get("op") == "finish":
            try:
                yield from_json(Outcome, json.dumps(operation["outcome"]), source="spool: outcome")
            except (InputError, KeyError):
                continue  # the flush sets it aside with the reason


def artifact(client: MlflowClient, run_id: str, path: str) -> bytes:
    """Return the content of a run's artifact.

    Raises
    ------
    InputError
        The run has no such artifact.
    """
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(run_id, path, folder)).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"MLflow run {run_id}: artifact {path} is missing ({error}).") from None
        except MlflowException as error:
            if not store.reachable():
                raise
            raise InputError(f"MLflow run {run_id}: artifact {path} cannot be read ({error}).") from None


def _attempts(client: MlflowClient, since_s: float) -> list[Run]:
    experiments = [found.experiment_id for found in _pages(lambda token: _experiments(client, token))]
    if not experiments:
        return []
    query = f"tags.`{keys.ROLE}` = 'train' and metrics.`{keys.RECORDED_AT}` > {since_s!r}"
    runs: list[Run] = list(
        _pages(lambda token: client.search_runs(experiments, query, max_results=_PAGE, page_token=token))
    )
    return sorted(runs, key=lambda run: (run.data.metrics[keys.RECORDED_AT], run.info.run_id))


def _experiments(client: MlflowClient, token: str | None) -> Any:
    return client.search_experiments(max_results=_PAGE, page_token=token)


def _pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yield everything from page to page: a single call silently stops at its thousandth run."""
    token = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return
