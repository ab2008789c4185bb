"""Prefect's settings, put into the environment before Prefect is imported. What the user has set stays."""

from __future__ import annotations

import os

from tula_core.home import state_folder

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

    Returns
    -------
    bool
        Whether Prefect is Tula's own, with a server that lives as long as this process.
    """
    own = not (os.environ.get("PREFECT_HOME") or os.environ.get("PREFECT_API_URL"))
    if own:
        os.environ["PREFECT_HOME"] = str(state_folder("prefect"))
    for name, value in {**_QUIET, **(_EMBEDDED if own else {})}.items():
        os.environ.setdefault(name, value)
    return own
