"""What the attempts of a run have spent, read from the files that their workers left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CHANGES_FILE = "changes.json"  # of a run whose methods were changed


def attempt_folder(run_folder: Path, attempt: int) -> Path:
    """Return the folder with the config, events and logs of an attempt, counted from 1."""
    return run_folder / f"attempt-{attempt}"


def parts_of(folder: Path) -> list[Path]:
    """Return the folders of an attempt's launches in order: its own, then those after a change of processes."""
    later = [path for path in folder.glob("part-*") if path.name.removeprefix("part-").isdecimal()]
    return [folder, *sorted(later, key=lambda path: int(path.name.removeprefix("part-")))]


def part_folder(folder: Path, number: int) -> Path:
    """Return the folder of one launch of an attempt, counted from 1."""
    return folder if number == 1 else folder / f"part-{number}"


def attempt_seconds(folder: Path) -> float:
    """Return how long an attempt ran, each launch from its beginning to its last event; 0 where it said nothing."""
    return sum(part_seconds(part) for part in parts_of(folder))


def part_seconds(folder: Path) -> float:
    """Return how long one launch ran, until its last event; 0 where it said nothing."""
    config = folder / "config.json"
    times = [float(event["at_s"]) for event in _events(folder)]
    return max(0.0, times[-1] - config.stat().st_mtime) if times and config.exists() else 0.0


def attempt_layout(folder: Path) -> tuple[Any, ...] | None:
    """Return nodes, processes per node, local batch and accumulation of an attempt; None where none was launched."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        task = config["payload"]
        return config["nodes"], config["processes_per_node"], task["local_batch"], task["accumulation"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def planned_layout(folder: Path) -> tuple[Any, ...] | None:
    """Return the layout of the row that an attempt trains; None where none was launched."""
    try:
        planned = json.loads((folder / "config.json").read_text(encoding="utf-8"))["payload"]["planned"]
        return tuple(planned)
    except (OSError, ValueError, KeyError, TypeError):
        return attempt_layout(folder)


def launched_from(run_folder: Path, attempts: int, method: int = 0) -> int:
    """Return the samples from which the last part that was launched in the first ``attempts`` attempts was to train.

    A part is launched only when the one before has left its checkpoint, so that a run has seen that many at least.

    Parameters
    ----------
    method
        How often the methods had been changed: only parts of those in force count, 0 where none says otherwise.
    """
    found = 0
    for number in range(1, attempts + 1):
        for part in parts_of(attempt_folder(run_folder, number)):
            try:
                config = json.loads((part / "config.json").read_text(encoding="utf-8"))
                if config["payload"].get("method", 0) == method:
                    found = max(found, int(config["payload"]["stages"][0]["from_samples"]))
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                continue
    return found


def seconds_by_nodes(run_folder: Path, attempts: int, nodes: int) -> dict[int, float]:
    """Return how long the first ``attempts`` attempts ran, by how many nodes they had: ``nodes`` where none says."""
    found: dict[int, float] = {}
    for number in range(1, attempts + 1):
        for part in parts_of(attempt_folder(run_folder, number)):
            layout = attempt_layout(part)
            used = nodes if layout is None else int(layout[0])
            found[used] = found.get(used, 0.0) + part_seconds(part)
    return found


def part_energy(folder: Path) -> tuple[float, float] | None:
    """Return the joules that were metered in one launch and for how many seconds, None where nothing was."""
    metered = [event["energy"] for event in _events(folder) if isinstance(event.get("energy"), dict)]
    if not metered or metered[-1].get("total_j") is None:
        return None
    return float(metered[-1]["total_j"]), float(metered[-1]["seconds"])


def spent(run_folder: Path, attempt: int) -> tuple[float | None, int | None]:
    """Return the seconds of all attempts up to ``attempt`` and the samples the last had seen, None where none says."""
    seconds = sum(attempt_seconds(attempt_folder(run_folder, number)) for number in range(1, attempt + 1))
    samples = None
    for number in range(attempt, 0, -1):
        parts = parts_of(attempt_folder(run_folder, number))
        seen = [event["samples"] for part in parts for event in _events(part) if _tells_samples(event)]
        if seen:
            samples = int(seen[-1])
            break
    return seconds or None, samples


def ran_on(folder: Path) -> str | None:
    """Return the hardware that an attempt's workers found themselves on, None where they never said."""
    return next((str(event["hardware"]) for event in _events(folder) if event.get("hardware")), None)


def _tells_samples(event: Mapping[str, Any]) -> bool:
    return event.get("kind") in ("progress", "resumed") and isinstance(event.get("samples"), int)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield whole events; a last line that was cut short is ignored."""
    path = folder / "events.jsonl"
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("at_s"), (int, float)):
                yield event


def course_rows(run_folder: Path) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows that a run trained one after the other and the changes between; nothing where none was changed.

    Rows are as in plan.json, changes have the fields of `MethodChange`.
    """
    try:
        told = json.loads((run_folder / CHANGES_FILE).read_text(encoding="utf-8"))
        return list(told["rows"]), list(told["changes"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], []
