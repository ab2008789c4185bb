"""Attempts on disk: which process runs each, and the closing of those whose process was killed.

A killed process cannot say that it ended. Each attempt therefore leaves a file that names its process; the next start
finds the process gone, records the outcome as KILLED with what had been spent until the last sign of life, and marks
the file. An attempt of another host is left alone: whether its process lives cannot be known from here. Where that host
is gone for good, as a container that came back under another name, a person names the run in ``TULA_TAKE_OVER``; it is
then closed as well, once it has given no sign of life for ten minutes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil
from filelock import FileLock

from tula_core.errors import InputError
from tula_core.home import state_folder, write_atomic
from tula_core.job import Cluster
from tula_core.models.cost import hourly_price
from tula_core.records import QUANTITIES, MethodChange, Outcome, Plan, Row, load
from tula_core.records.outcome import SPENT
from tula_core.tracking import spool, store
from tula_core.tracking.bill import launches, launches_usd, metered_j
from tula_core.tracking.runs import finish_operation
from tula_core.tracking.send import flush
from tula_core.tracking.spent import attempt_folder, course_rows, ran_on, spent

Status = Literal["FINISHED", "FAILED", "KILLED"]
TAKE_OVER = "TULA_TAKE_OVER"  # the environment's name for a run of a host that is gone
SILENT_S = 600.0  # workers speak every second or so, and are silent only during an evaluation or a start


def open_attempt(run_folder: Path, plan: Plan, job_id: str, attempt: int, row: Row | None = None) -> Path:
    """Write ``attempt-<n>.json``, which names this process as the one that runs the attempt.

    Parameters
    ----------
    row
        The row that is trained; the plan's choice where it is not given.
    """
    trained = plan.choice if row is None else row
    assert trained is not None, "an attempt needs a row to train"
    record = {
        "schema_version": 1,
        "job_id": job_id,
        "job_name": plan.job.title,
        "attempt": attempt,
        "pid": os.getpid(),
        "process_started": _birth(os.getpid()),
        "boot_id": _boot_id(),
        "host": socket.gethostname(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "RUNNING",
        "plan_digest": plan.digest,
        "job_hash": plan.job.digest,
        "workload": plan.job.workload or plan.job.title,
        "hardware": str(plan.hardware.get("fingerprint", "")),
        "predictor": plan.predictor,
        "row": trained.to_dict(),
        "learning_rate": plan.job.recipe.learning_rate,
        "price_per_node_hour": hourly_price(plan.job.cluster),
        "billing_seconds": plan.job.cluster.billing_seconds,
        "cluster": plan.job.cluster.model_dump(mode="json", exclude_defaults=True),
        "train_samples": plan.facts.get("train_samples"),
    }
    path = attempt_path(run_folder, attempt)
    write_atomic(path, json.dumps(record, indent=2) + "\n")
    return path


def close_attempt(run_folder: Path, attempt: int, status: Status) -> None:
    """Mark an attempt as ended; one that was never opened is left alone."""
    path = attempt_path(run_folder, attempt)
    if path.exists():
        _mark(path, json.loads(path.read_text(encoding="utf-8")), status)


def attempt_path(run_folder: Path, attempt: int) -> Path:
    """Return the file of an attempt, counted from 1."""
    return Path(run_folder) / f"attempt-{attempt}.json"


def is_running(record: Mapping[str, Any]) -> bool:
    """Return whether an attempt is open and its process may be alive; one of another host may be."""
    if record["status"] != "RUNNING":
        return False
    if record["host"] != socket.gethostname():
        return True
    return bool(record["boot_id"] == _boot_id()) and bool(_birth(record["pid"]) == record["process_started"])


def running_process(run_folder: Path) -> int | None:
    """Return the number of the process that runs an attempt of this run, None where none does."""
    running = _running(run_folder)
    return None if running is None else int(running[1]["pid"])


def under_way(run_folder: Path) -> str | None:
    """Return in words who runs this run, with what can be done about it, None where nobody does."""
    running = _running(run_folder)
    if running is None:
        return None
    path, record = running
    process = f"process {record['pid']}"
    if record["host"] == socket.gethostname():
        return f"run {run_folder.name} is under way in {process}. Wait until it ends or stop it first."
    silent_s = _silent_s(path)
    told = (
        f"run {run_folder.name} was begun by {process} on host {record['host']!r}, and whether it is still under way "
        f"cannot be known on {socket.gethostname()!r}. Its last sign of life was {silent_s / 60:.0f} minutes ago"
    )
    if silent_s < SILENT_S:
        return f"{told}: wait until it ends, or stop it there and try again after {SILENT_S / 60:.0f} minutes."
    return f"{told}. If that host or container is gone, set {TAKE_OVER}={run_folder.name} and try again."


def _running(run_folder: Path) -> tuple[Path, dict[str, Any]] | None:
    for path in run_folder.glob("attempt-*.json"):
        record = _read(path)
        if record is not None and is_running(record) and not _taken_over(path, record):
            return path, record
    return None


def _taken_over(path: Path, record: Mapping[str, Any]) -> bool:
    """Return whether a person has said that the host of a silent attempt is gone."""
    named = os.environ.get(TAKE_OVER, "").strip() == path.parent.name
    return named and record["host"] != socket.gethostname() and _silent_s(path) >= SILENT_S


def _silent_s(path: Path) -> float:
    """Return the seconds since an attempt, or its workers, last wrote anything into the run's folder."""
    run = path.parent
    signs = [path, *run.glob("checkpoint*"), *run.glob(f"{path.stem}/events.jsonl")]
    signs += run.glob(f"{path.stem}/part-*/events.jsonl")
    return max(0.0, store.now_s() - max(sign.stat().st_mtime for sign in signs))


def close_dead_runs(*, send: bool = True) -> list[str]:
    """Close the attempts whose process is gone, as KILLED and with their partial cost; return their jobs' ids.

    Parameters
    ----------
    send
        False leaves the sending to the next flush of the spool.
    """
    closed: list[str] = []
    with FileLock(store.lock_path("dead-runs"), timeout=60):
        for path in sorted(state_folder("runs").glob("*/attempt-*.json")):
            record = _read(path)
            if record is None or record["status"] != "RUNNING":
                continue
            if is_running(record) and not _taken_over(path, record):
                continue
            outcome = _outcome(path.parent, record)
            spool.append(finish_operation(outcome, only_if_running=True))
            _mark(path, record, outcome.status)
            closed.append(record["job_id"])
    if closed and send:
        flush()
    return closed


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(record, dict) and record.get("schema_version") == 1 and {"status", "row", "pid"} <= set(record)
    return record if whole else None


def _mark(path: Path, record: dict[str, Any], status: str) -> None:
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    write_atomic(path, json.dumps({**record, "status": status, "ended_at": ended}, indent=2) + "\n")


def _birth(pid: int) -> str:
    """Return what tells a process from a later one with its number; empty where none lives.

    On Linux the ticks since boot, which do not move when the clock is set, as the start time in seconds does.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        return f"{process.create_time():.0f}"
    except (psutil.Error, OSError):
        return ""


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else f"{psutil.boot_time():.0f}"


def _outcome(folder: Path, record: Mapping[str, Any]) -> Outcome:
    """Return the outcome that the dead process wrote for this attempt, else one from what it left behind."""
    path = folder / "outcome.json"
    if path.exists():
        try:
            written = load(Outcome, path)
        except InputError:
            written = None
        if written is not None and written.attempt == record["attempt"]:
            return written
    elapsed_s, samples = spent(folder, record["attempt"])
    events = attempt_folder(folder, record["attempt"]) / "events.jsonl"
    seen = events if events.exists() else attempt_path(folder, record["attempt"])
    row, planned = record["row"], record["hardware"]
    rows, changes = course_rows(folder)
    last, known = (rows[-1], SPENT) if rows and changes else (row, QUANTITIES)
    hardware = ran_on(attempt_folder(folder, record["attempt"])) or planned
    return Outcome(
        schema_version=Outcome.SCHEMA_VERSION,
        **{name: record[name] for name in ("job_id", "job_hash", "job_name", "workload", "predictor")},
        hardware=hardware,
        planned_hardware=planned if hardware != planned else None,
        attempt=record["attempt"],
        status="KILLED",
        failure="the process was gone at the next start (killed, out of memory, or the machine went down)",
        **{name: last[name] for name in ("nodes", "processes_per_node", "local_batch", "accumulation")},
        mitigation=tuple(last["mitigation"]),
        precision=row.get("options", {}).get("precision"),
        learning_rate=record["learning_rate"],
        learning_rate_reductions=0,
        target_reached=None,
        predicted={name: row[name] if name in known else None for name in QUANTITIES},
        predicted_low={name: row[f"{name}_low"] if name in known else None for name in QUANTITIES},
        predicted_high={name: row[f"{name}_high"] if name in known else None for name in QUANTITIES},
        actual={**dict.fromkeys(QUANTITIES), **_partial(folder, record, elapsed_s, samples)},
        curve=(),
        run_folder=str(folder),
        finished_at=datetime.fromtimestamp(seen.stat().st_mtime, UTC).isoformat(timespec="seconds"),
        method_changes=tuple(MethodChange.from_dict(change) for change in changes),
    )


def _partial(
    folder: Path, record: Mapping[str, Any], elapsed_s: float | None, samples: int | None
) -> dict[str, float | None]:
    """Return what was spent until the last sign of life: lower bounds of what a whole run would have taken."""
    partial: dict[str, float | None] = {}
    if elapsed_s is not None:
        row = record["row"]
        run = launches(folder, record["attempt"], row["nodes"], row["processes_per_node"])
        partial["time_to_train_s"] = elapsed_s
        partial["node_hours"] = sum(launch.nodes * launch.seconds for launch in run) / 3600
        partial["energy_j"] = metered_j(run)
        partial["cost_usd"] = launches_usd(run, _cluster(record), row["local_batch"])
    if samples is not None and record["train_samples"]:
        partial["epochs"] = samples / record["train_samples"]
    return partial


def _cluster(record: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a record; older ones hold no more of it than the price."""
    prices = {name: record[name] for name in ("price_per_node_hour", "billing_seconds")}
    return Cluster.model_validate(record.get("cluster", prices))
