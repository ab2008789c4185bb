"""What the attempts of a run have taken, from the files they leave even when they are killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def attempt_folders(run_folder: Path) -> list[Path]:
    """Return the folders of a run's attempts, the first first."""
    folders = [path for path in run_folder.glob("attempt-*") if path.is_dir() and path.name[8:].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[8:]))


def attempt_seconds(folder: Path) -> float:
    """Return how long an attempt ran, from its launch to its last event; 0 where it said nothing."""
    config = folder / "config.json"
    times = [float(event["at_s"]) for event in _events(folder) if isinstance(event.get("at_s"), (int, float))]
    return max(0.0, times[-1] - config.stat().st_mtime) if times and config.exists() else 0.0


def spent(run_folder: Path) -> tuple[float | None, int | None]:
    """Return the seconds of all attempts of a run and the training samples it had seen, None where nothing tells."""
    folders = attempt_folders(run_folder)
    seconds = sum(attempt_seconds(folder) for folder in folders)
    samples = None
    for folder in folders:
        told = [event["samples"] for event in _events(folder) if event.get("kind") == "progress"]
        samples = told[-1] if told else samples
    return seconds or None, samples


def last_sign(run_folder: Path) -> float | None:
    """Return when a run's attempts last said something, in seconds since the epoch; None where they never did."""
    files = [folder / "events.jsonl" for folder in attempt_folders(run_folder)]
    return max((file.stat().st_mtime for file in files if file.exists()), default=None)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of an attempt; a last line that was cut short is left out."""
    file = folder / "events.jsonl"
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
