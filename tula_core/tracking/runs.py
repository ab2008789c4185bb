"""`Tracker`: what the rest of Tula calls to record one attempt of one job in MLflow."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tula_core.errors import InputError
from tula_core.records import Outcome, Plan, Row, to_json
from tula_core.tracking import spool
from tula_core.tracking.send import FlushReport, flush

PROGRESS_INTERVAL_S = 2.0


class Tracker:
    """Records a job's forecast, progress and outcome, however often it is started and whether MLflow is up or not.

    Every call writes an operation to the spool first and then tries to send the spool. All attempts of a job share
    ``job_id`` and with it one parent run, in the experiment named ``job_name``.

    Parameters
    ----------
    job_name, job_id, job_hash, workload, hardware, predictor
        The job's identity, as the run's tags and an `Outcome` hold it.

    Raises
    ------
    InputError
        ``job_id`` holds a character other than a letter, a digit, a dot, a dash or an underscore.
    """

    def __init__(self, job_name: str, job_id: str, job_hash: str, workload: str, hardware: str, predictor: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", job_id):
            raise InputError(f"job_id: {job_id!r} is not made of letters, digits, dots, dashes and underscores alone.")
        self.identity: dict[str, Any] = {
            "job_name": job_name,
            "job_id": job_id,
            "job_hash": job_hash,
            "workload": workload,
            "hardware": hardware,
            "predictor": predictor,
        }
        self.attempt = 1
        self._next_flush_s = 0.0

    def start(self, plan: Plan, row: Row, attempt: int) -> FlushReport:
        """Record the forecast of ``row`` and open the runs of this attempt, counted from 1; again is harmless."""
        self.attempt = attempt
        self._append("start", plan_json=plan.to_json(), row=row.to_dict())
        return flush()

    def log_progress(self, points: Sequence[tuple[int, Mapping[str, float]]]) -> FlushReport:
        """Record curves of this attempt's training run.

        Parameters
        ----------
        points
            Pairs of samples seen, the step axis, and named values. A value that is not finite becomes a tag.
        """
        if not points:
            return FlushReport()
        told = [(samples, {name: _finite(value) for name, value in named.items()}) for samples, named in points]
        self._append("progress", points=told)
        if time.monotonic() < self._next_flush_s:
            return FlushReport()
        report = flush(urgent=False)
        self._next_flush_s = time.monotonic() + PROGRESS_INTERVAL_S
        return report

    def finish(self, outcome: Outcome) -> FlushReport:
        """Record what the run really did and end the runs of this attempt in the outcome's own status."""
        # Where the run really was is known only now.
        spool.append(finish_operation(outcome, {**self.identity, "hardware": outcome.hardware}))
        return flush()

    def _append(self, kind: str, **more: Any) -> None:
        spool.append({"op": kind, **self.identity, "attempt": self.attempt, "at_ms": int(time.time() * 1000), **more})


def finish_operation(
    outcome: Outcome, identity: Mapping[str, Any] | None = None, *, only_if_running: bool = False
) -> dict[str, Any]:
    """Return the spool's document for an outcome.

    Parameters
    ----------
    identity
        The job's identity where it is known better than the outcome tells it.
    only_if_running
        Leave a run alone that has ended already.
    """
    names = ("job_name", "job_id", "job_hash", "workload", "hardware", "predictor")
    return {
        "op": "finish",
        **(identity or {name: getattr(outcome, name) for name in names}),
        "attempt": outcome.attempt,
        "at_ms": _milliseconds(outcome.finished_at),
        "outcome": json.loads(to_json(outcome)),
        "only_if_running": only_if_running,
    }


def _milliseconds(moment: str) -> int:
    try:
        told = datetime.fromisoformat(moment)
        return int((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        return int(time.time() * 1000)


def _finite(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))
