"""Which MLflow store is used, whether it answers, and the client for it.

``MLFLOW_TRACKING_URI`` decides; without it the store is ``mlflow.db`` in the state folder. Nothing here touches
MLflow's global state: every client carries its own address.
"""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tula_core.errors import InputError, RunError, TulaError
from tula_core.home import state_folder, tula_home

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROBE_TIMEOUT_S = 2.0

# A retried POST can create a second run where the first answer was lost, so MLflow itself never retries: the spool
# does, looking the run up first.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # standard output is for results
}
_clients: dict[tuple[int, str], MlflowClient] = {}
_clients_lock = threading.Lock()


def tracking_uri() -> str:
    """Return the address of the tracking store; a relative SQLite path is made absolute.

    Raises
    ------
    InputError
        The address is a plain folder, which this MLflow refuses, or a SQLite address without a file.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not uri:
        return f"sqlite:///{tula_home() / 'mlflow.db'}"
    try:
        scheme = urllib.parse.urlsplit(uri).scheme
    except ValueError as error:
        raise InputError(
            f"MLFLOW_TRACKING_URI: {uri!r} is no address ({error}). Use sqlite:///PATH/mlflow.db, http://HOST:PORT, "
            "or unset it for a database in the state folder."
        ) from None
    if scheme in ("", "file") and uri != "databricks":
        raise InputError(
            f"MLFLOW_TRACKING_URI: {uri!r} is a folder, which MLflow no longer takes as a store. Use "
            "sqlite:///PATH/mlflow.db, http://HOST:PORT, or unset it for a database in the state folder."
        )
    path = database_path(uri)
    if path is None:
        return uri
    if path.name in ("", ":memory:"):
        raise InputError(f"MLFLOW_TRACKING_URI: {uri!r} names no file. Use sqlite:///PATH/mlflow.db.")
    return f"sqlite:///{path}"


def database_path(uri: str) -> Path | None:
    """Return the absolute file of a SQLite address, None for any other address."""
    if not uri.startswith("sqlite:"):
        return None
    return Path(uri.removeprefix("sqlite:").removeprefix("///").partition("?")[0]).absolute()


def is_missing(uri: str) -> bool:
    """Return whether the store is a database that nothing was written to yet; asking it would only create it."""
    path = database_path(uri)
    return path is not None and not path.exists()


def shown_uri(uri: str) -> str:
    """Return the address without a user name and password, fit for a message or a file."""
    parts = urllib.parse.urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def reachable(uri: str | None = None, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Return whether the store answers within ``timeout_s``; a server that says no (4xx) does answer.

    The probe runs in a thread of its own, because looking up a host's name knows no time limit.
    """
    address = tracking_uri() if uri is None else uri
    path = database_path(address)
    if path is not None:
        return os.access(_existing(path), os.W_OK)
    if not address.startswith(("http://", "https://")):
        return True
    answers: list[bool] = []
    probe = threading.Thread(target=lambda: answers.append(_answers(address, timeout_s)), daemon=True)
    probe.start()
    probe.join(timeout_s + 0.5)
    return bool(answers) and answers[0]


def _existing(path: Path) -> Path:
    return path if path.exists() else next(folder for folder in path.parents if folder.exists())


def _answers(address: str, timeout_s: float) -> bool:
    parts = urllib.parse.urlsplit(address)
    plain = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        with urllib.request.urlopen(plain.rstrip("/") + "/health", timeout=timeout_s):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # something speaks TLS there; MLflow judges the certificate
    except (OSError, ValueError, http.client.HTTPException):
        return False


def client(uri: str | None = None) -> MlflowClient:
    """Return this process's client for the store, whose database is created first where it is missing.

    Raises
    ------
    RunError
        MLflow cannot open such a store. Never an error that speaks against an operation: the spool keeps them all.
    """
    address = tracking_uri() if uri is None else uri
    key = (os.getpid(), address)
    with _clients_lock:
        if key not in _clients:
            try:
                _clients[key] = _connect(address)
            except (OSError, TulaError):
                raise
            except Exception as error:  # a scheme it does not know, a driver that is missing, a database it cannot read
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                raise RunError(
                    f"MLFLOW_TRACKING_URI: MLflow cannot open {shown_uri(address)!r} ({reason}). "
                    "Use sqlite:///PATH/mlflow.db or http://HOST:PORT, or unset it for a database in the state folder."
                ) from error
        return _clients[key]


def _connect(address: str) -> MlflowClient:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings(), write_lock(address):  # of processes that create one database at once, most die
        warnings.simplefilter("ignore")  # MLflow's use of its own libraries, nothing a user could mend
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # the errors it prints are raised too
        path = database_path(address)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        made = MlflowClient(tracking_uri=address, registry_uri=address)
        if path is not None:
            made.search_registered_models(max_results=1)
        return made


def write_lock(uri: str) -> AbstractContextManager[object]:
    """Return a lock that lets one process at a time write to a SQLite store; a server needs none."""
    path = database_path(uri)
    if path is None:
        return nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock", timeout=120)


def artifact_location(uri: str, experiment: str) -> str | None:
    """Return where an experiment's artifacts go: beside a SQLite file, else where the server decides (None)."""
    path = database_path(uri)
    if path is None:
        return None
    return (path.parent / "mlartifacts" / urllib.parse.quote(experiment, safe=" ")).as_uri()


def lock_path(name: str) -> Path:
    """Return the file of a lock in the state folder."""
    return state_folder("locks") / f"{name}.lock"


def now_s() -> float:
    """Return the time in seconds since 1970, as MLflow counts it."""
    return time.time()
