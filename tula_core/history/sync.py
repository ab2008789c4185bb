"""`sync`: every outcome there is, from MLflow and from what this machine has not sent yet.

What MLflow gave is kept in the state folder, and only what the store got since is asked for. A run that somebody
deletes in MLflow therefore stays known until a full sync.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from tula_core.errors import InputError, RunError
from tula_core.home import state_folder, tula_home, write_atomic
from tula_core.progress import Event, Listener, silent
from tula_core.records import Outcome, from_json, load, to_json
from tula_core.tracking import flush, shown_uri, tracking_uri
from tula_core.tracking.read import Recorded, pending_outcomes, recorded_outcomes

OVERLAP_S = 86_400.0  # asked for again each time: the clocks of machines that share a server differ
_VERSION = 1


def sync(*, full: bool = False, listener: Listener = silent) -> list[Outcome]:
    """Return one outcome per job, the latest attempt's, in the order in which they ended.

    Where MLflow cannot be reached, the listener is warned and the answer holds what was known before, with the runs of
    this machine.

    Parameters
    ----------
    full
        Forget what was kept and read everything from MLflow again.
    """
    report = flush()
    for problem in report.rejected:
        listener(Event(stage="track", message=problem, level="warning"))
    with FileLock(state_folder("locks") / "history.lock", timeout=600):
        kept = _Cache(shown_uri(tracking_uri())) if full else _read(shown_uri(tracking_uri()))
        try:
            _update(kept, listener)
        except RunError as error:
            message = f"{error} The history below holds what was known before and the runs of this machine."
            listener(Event(stage="track", message=message, level="warning"))
        else:
            _write(kept)
    recorded = [entry.outcome for entry in kept.entries.values()]
    return latest([*recorded, *pending_outcomes(), *local_outcomes()])


def latest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return one outcome per job: the highest attempt, and of one attempt a result rather than a supposed death."""
    best: dict[str, Outcome] = {}
    for outcome in outcomes:
        other = best.get(outcome.job_id)
        if other is None or _rank(outcome) > _rank(other):
            best[outcome.job_id] = outcome
    return sorted(best.values(), key=lambda outcome: (outcome.finished_at, outcome.job_id))


def local_outcomes() -> Iterator[Outcome]:
    """Yield the outcomes in the state folder's runs; a file that cannot be read is passed over."""
    for path in sorted(state_folder("runs").glob("*/outcome.json")):
        try:
            yield load(Outcome, path)
        except InputError:
            continue


def _rank(outcome: Outcome) -> tuple[int, bool, str]:
    return outcome.attempt, outcome.status != "KILLED", outcome.finished_at


@dataclass
class _Cache:
    """What MLflow gave, by the run of each attempt, with the address it came from."""

    uri: str
    entries: dict[str, Recorded] = field(default_factory=dict)

    @property
    def since_s(self) -> float:
        newest = max((entry.recorded_at_s for entry in self.entries.values()), default=0.0)
        return max(0.0, newest - OVERLAP_S)


def _update(kept: _Cache, listener: Listener) -> None:
    def skip(run_id: str, reason: str) -> None:
        listener(Event(stage="track", message=f"an outcome was passed over: {reason}", level="warning"))

    known = {run_id: entry.recorded_at_s for run_id, entry in kept.entries.items()}
    for entry in recorded_outcomes(kept.since_s, known, skip):
        kept.entries[entry.run_id] = entry


def _path() -> Path:
    return tula_home() / "history.jsonl"


def _read(uri: str) -> _Cache:
    """Return the kept history; an empty one where there is none, it is damaged, or it came from another store."""
    kept = _Cache(uri)
    try:
        header, *lines = _path().read_text(encoding="utf-8").splitlines()
        if json.loads(header) != {"schema_version": _VERSION, "uri": uri}:
            return kept
        for line in lines:
            data = json.loads(line)
            outcome = from_json(Outcome, json.dumps(data["outcome"]), source="history")
            entry = Recorded(run_id=data["run_id"], recorded_at_s=float(data["recorded_at_s"]), outcome=outcome)
            kept.entries[entry.run_id] = entry
    except (OSError, ValueError, KeyError, TypeError):  # it can always be read from MLflow again
        return _Cache(uri)
    return kept


def _write(kept: _Cache) -> None:
    lines = [json.dumps({"schema_version": _VERSION, "uri": kept.uri})]
    for entry in kept.entries.values():
        outcome = json.loads(to_json(entry.outcome))
        lines.append(json.dumps({"run_id": entry.run_id, "recorded_at_s": entry.recorded_at_s, "outcome": outcome}))
    write_atomic(_path(), "\n".join(lines) + "\n")
