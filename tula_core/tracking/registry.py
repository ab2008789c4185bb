"""The predictor's versions: in MLflow's model registry for people and other machines, in the state folder for plans.

A version is what history taught (`Corrections`), an artifact of a run of its own. Version 1 is the built-in predictor,
which corrects nothing; the alias ``champion`` names the version that plans use. Plans read the champion from a file in
the state folder, so that planning never needs a server.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tula_core.errors import InputError, RunError
from tula_core.home import state_folder, tula_home
from tula_core.records import Corrections, from_json, load, save, to_json
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import keys, store
from tula_core.tracking.apply import experiment_id
from tula_core.tracking.read import artifact

if TYPE_CHECKING:
    from mlflow import MlflowClient

_FILE = "predictor/corrections.json"
_DEAD_S = 3600.0  # a registration takes seconds
_MOST_DEAD = 100


def champion() -> Corrections:
    """Return the corrections that plans use, from the state folder alone; the built-in ones where there is no file.

    Raises
    ------
    InputError
        The file is damaged: a plan must not silently forget what was learnt.
    """
    path = champion_path()
    try:
        return load(Corrections, path) if path.exists() else BUILTIN
    except InputError as error:
        raise InputError(
            f"{error} Delete {str(path)!r} to plan with the built-in predictor; tula retrain takes the champion "
            "from the registry again."
        ) from None


def champion_path() -> Path:
    """Return the file with the champion."""
    return tula_home() / "champion.json"


def sync_champion() -> Corrections:
    """Take the champion from the registry where it can be reached, and return the champion.

    A registry without a champion leaves the built-in predictor.
    """
    if store.is_missing(store.tracking_uri()):
        return champion()
    try:
        with _registry() as client:
            version = _alias(client, keys.CHAMPION)
            found = BUILTIN if version is None else _download(client, version)
    except RunError:
        return champion()
    if version is not None or champion_path().exists():
        _keep(found)
        save(found, champion_path())
    return found


def register_challenger(corrections: Corrections, report: Mapping[str, Any]) -> int:
    """Register corrections as a new version with the alias ``challenger`` and return its number.

    The registry gives the number, and the stored corrections carry it whatever ``corrections.version`` says. The
    built-in predictor is registered as version 1 first where it is missing.

    Parameters
    ----------
    report
        How the corrections were checked; stored beside them, its numbers also as metrics.

    Raises
    ------
    RunError
        The registry cannot be reached.
    """
    with _registry() as client:
        _register_builtin(client)
        version = _register(client, corrections, report)
        _again(lambda: client.set_registered_model_alias(keys.PREDICTOR_NAME, keys.CHALLENGER, str(version)))
    return version


def promote(version: int) -> Corrections:
    """Make a registered version the champion, here and in the registry, and return its corrections.

    Raises
    ------
    InputError
        There is no such version.
    RunError
        The registry cannot be reached.
    """
    with _registry() as client:
        _register_builtin(client)
        found = _download(client, version)
        _again(lambda: client.set_registered_model_alias(keys.PREDICTOR_NAME, keys.CHAMPION, str(version)))
        if _alias(client, keys.CHALLENGER) == version:
            client.delete_registered_model_alias(keys.PREDICTOR_NAME, keys.CHALLENGER)
        save(found, champion_path())
    return found


def corrections_of(label: str) -> Corrections | None:
    """Return the corrections of the version that a plan or an outcome names, None where they cannot be had.

    The label is compared whole: version numbers of two registries mean different corrections.
    """
    match = re.match(rf"{keys.PREDICTOR_NAME} v(\d+)\b", label)
    if match is None:
        return None
    if label == BUILTIN.label:
        return BUILTIN
    version = int(match.group(1))
    path = _path(version)
    if path.exists():
        kept = load(Corrections, path)
        if kept.label == label:
            return kept
    try:
        with _registry() as client:
            found = _download(client, version)
    except (InputError, RunError):
        return None
    return found if found.label == label else None


@contextmanager
def _registry() -> Iterator[MlflowClient]:
    """Give the client, alone among this machine's processes; trouble with the registry becomes a `RunError`."""
    uri = store.tracking_uri()
    remedy = "the predictor's registry is there. Start or mend the server, or unset MLFLOW_TRACKING_URI, and try again."
    if not store.reachable(uri):
        raise RunError(f"MLflow at {store.shown_uri(uri)} cannot be reached, and {remedy}")
    client = store.client(uri)
    from mlflow.exceptions import MlflowException

    try:
        with FileLock(store.lock_path("registry"), timeout=120):
            yield client
    except MlflowException as error:
        raise RunError(f"MLflow at {store.shown_uri(uri)} failed ({error}), and {remedy}") from error


def _register_builtin(client: MlflowClient) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(keys.PREDICTOR_NAME, description="What Tula's forecasts learnt from outcomes.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    told = {"reason": "built-in: no corrections"}
    if _has_version(client, 1):
        run_id = client.get_model_version(keys.PREDICTOR_NAME, "1").run_id
        if run_id and not _has_file(client, run_id):  # whoever registered it was stopped on the way
            _complete(client, run_id, 1, BUILTIN, told)
            _first_champion(client)
        return
    version = _register(client, BUILTIN, told)
    if version != 1:  # another machine was first
        client.delete_model_version(keys.PREDICTOR_NAME, str(version))
    else:
        _first_champion(client)


def _first_champion(client: MlflowClient) -> None:
    if _alias(client, keys.CHAMPION) is None:
        _again(lambda: client.set_registered_model_alias(keys.PREDICTOR_NAME, keys.CHAMPION, "1"))


def _register(client: MlflowClient, corrections: Corrections, report: Mapping[str, Any]) -> int:
    experiment = experiment_id(client, store.tracking_uri(), keys.PREDICTOR_NAME)
    _close_dead(client, experiment)
    run_id = _new_run(client, experiment)
    version = _new_version(client, run_id)
    _complete(client, run_id, version, corrections, report)
    return version


def _new_run(client: MlflowClient, experiment: str) -> str:
    """Make a run and return its id, also where the server made it and its answer was lost."""
    from mlflow.exceptions import MlflowException

    token = uuid.uuid4().hex
    tags = {keys.ROLE: "predictor", keys.REGISTRATION: token}
    try:
        return str(client.create_run(experiment, tags=tags).info.run_id)
    except MlflowException:
        made = client.search_runs([experiment], f"tags.`{keys.REGISTRATION}` = '{token}'", max_results=1)
        if not made:
            raise
        return str(made[0].info.run_id)


def _new_version(client: MlflowClient, run_id: str) -> int:
    """Make a version of a run and return its number, also where the server made it and its answer was lost."""
    from mlflow.exceptions import MlflowException

    source = f"runs:/{run_id}/predictor"
    try:
        made = client.create_model_version(keys.PREDICTOR_NAME, source, run_id=run_id, await_creation_for=0)
        return int(made.version)
    except MlflowException:
        found = client.search_model_versions(f"run_id = '{run_id}'")
        if not found:
            raise
        return int(found[0].version)


def _complete(
    client: MlflowClient, run_id: str, version: int, corrections: Corrections, report: Mapping[str, Any]
) -> None:
    """Write all that belongs to a version; doing so again changes nothing."""
    final = replace(corrections, version=version)
    lines = [final.label, *(f"{name}: x{math.exp(c.log_bias):.3f}" for name, c in final.by_quantity.items())]
    lines += [f"{name}: {m.shift:+.3f} of its card's sd" for name, m in final.by_method.items()]
    written = json.dumps(report, indent=2, default=str) + "\n"
    _again(lambda: client.update_run(run_id, name=f"version {version}"))
    _again(lambda: client.log_text(run_id, to_json(final), _FILE))
    _again(lambda: client.log_text(run_id, written, "predictor/report.json"))
    for name, value in _numbers(report):
        client.log_metric(run_id, name, value)
    _again(lambda: client.update_model_version(keys.PREDICTOR_NAME, str(version), ", ".join(lines)))
    _again(lambda: client.set_terminated(run_id))
    _keep(final)


def _again(call: Callable[[], object]) -> None:
    """Do what can be done twice, once more where it failed: the answer alone may have been lost."""
    from mlflow.exceptions import MlflowException

    try:
        call()
    except MlflowException:
        call()


def _close_dead(client: MlflowClient, experiment: str) -> None:
    """Close the runs of registrations that were stopped on the way, long enough ago to be no one's any more."""
    before_ms = int(1000 * (store.now_s() - _DEAD_S))
    query = f"attributes.status = 'RUNNING' and attributes.start_time < {before_ms}"
    for run in client.search_runs([experiment], query, max_results=_MOST_DEAD):
        client.set_terminated(run.info.run_id, "KILLED")


def _has_file(client: MlflowClient, run_id: str) -> bool:
    return any(found.path == _FILE for found in client.list_artifacts(run_id, _FILE.rpartition("/")[0]))


def _numbers(report: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in report.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield keys.clean_name(prefix + name), float(value)


def _has_version(client: MlflowClient, version: int) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_model_version(keys.PREDICTOR_NAME, str(version))
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def _alias(client: MlflowClient, alias: str) -> int | None:
    from mlflow.exceptions import MlflowException

    try:
        return int(client.get_model_version_by_alias(keys.PREDICTOR_NAME, alias).version)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def _download(client: MlflowClient, version: int) -> Corrections:
    if not _has_version(client, version):
        raise InputError(f"predictor: the registry holds no version {version} of {keys.PREDICTOR_NAME}.")
    run_id = client.get_model_version(keys.PREDICTOR_NAME, str(version)).run_id
    if not run_id:
        raise InputError(f"predictor: version {version} of {keys.PREDICTOR_NAME} was not registered by Tula.")
    found = from_json(Corrections, artifact(client, run_id, _FILE), source=f"{keys.PREDICTOR_NAME} version {version}")
    _keep(found)
    return found


def _keep(corrections: Corrections) -> None:
    save(corrections, _path(corrections.version))


def _path(version: int) -> Path:
    return state_folder("predictors") / f"{version}.json"
