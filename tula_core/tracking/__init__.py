"""MLflow: runs, attempts, artifacts, the spool and the predictor's registry. Nothing else imports mlflow.

Importing this package loads no mlflow, which costs seconds; the first operation that is sent does.
"""

from tula_core.tracking.dead import close_attempt, close_dead_runs, open_attempt
from tula_core.tracking.registry import champion, corrections_of, promote, register_challenger, sync_champion
from tula_core.tracking.runs import Tracker
from tula_core.tracking.send import FlushReport, flush
from tula_core.tracking.store import reachable, shown_uri, tracking_uri

__all__ = [
    "FlushReport",
    "Tracker",
    "champion",
    "close_attempt",
    "close_dead_runs",
    "corrections_of",
    "flush",
    "open_attempt",
    "promote",
    "reachable",
    "register_challenger",
    "shown_uri",
    "sync_champion",
    "tracking_uri",
]
