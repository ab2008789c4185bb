"""Prefect's settings, put into the environment before Prefect is imported. What the user has set stays."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.request

from tula_core.errors import RunError
from tula_core.home import state_folder, tula_home

_NEEDED_BYTES = 20_000_000
_QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
}
_EMBEDDED = {
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
    # The first start on a cold machine takes longer than the 20 s that are Prefect's own limit.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}


def configure() -> bool:
    """Set what Prefect reads from the environment; call it before the first ``import prefect``.

    Without ``PREFECT_HOME`` and ``PREFECT_API_URL`` Prefect lives under Tula's own state folder with a server that is
    started for the run alone; task results are then in ``storage`` there. With one of them set Prefect is the user's,
    and only noise is turned off.

    Raises
    ------
    RunError
        The disk of the state folder has no room for the server's database, which would then never come up; or the
        user's own server does not answer.

    Returns
    -------
    bool
        Whether Prefect is Tula's own, with a server that lives as long as this process.
    """
    own = not (os.environ.get("PREFECT_HOME") or os.environ.get("PREFECT_API_URL"))
    if own:
        _check_space()
        os.environ["PREFECT_HOME"] = str(state_folder("prefect"))
    for name, value in {**_QUIET, **(_EMBEDDED if own else {})}.items():
        os.environ.setdefault(name, value)
    if os.environ.get("PREFECT_API_URL"):
        _check_server(os.environ["PREFECT_API_URL"])
    return own


def _check_server(address: str) -> None:
    try:
        with urllib.request.urlopen(address.rstrip("/") + "/health", timeout=5):
            return
    except urllib.error.HTTPError as error:
        error.close()  # it answers, if only to refuse; Prefect itself brings the key
    except (OSError, ValueError, http.client.HTTPException) as error:
        shown = address.rpartition("@")[2]
        raise RunError(
            f"PREFECT_API_URL: {shown!r} does not answer ({error}). Start the server, mend the address, or unset it "
            "for a server that is started for the run alone."
        ) from error


def _check_space() -> None:
    home = tula_home()
    free = shutil.disk_usage(home).free
    if free < _NEEDED_BYTES:
        raise RunError(
            f"TULA_HOME: {str(home)!r} has {free / 1e6:.1f} MB free, Prefect's server needs "
            f"{_NEEDED_BYTES / 1e6:.0f} MB. Free disk space or set TULA_HOME to a larger disk; "
            "tula plan and tula train need no server."
        )
