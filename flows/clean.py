"""What ``tula clean`` frees. Only folders named here are looked at, so what is not known is never deleted.

Kept whatever its age: MLflow's database and artifacts, the spool, the history, the predictors with the champion, locks,
every run that is under way, and of finished runs the outcome.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CACHES = ("cache/profiles", "profiles", "plans", "studies", "errors")
KEPT_OF_RUNS = ("outcome.json", "attempt-*.json")
SERVER_REST_S = 600.0  # Prefect's home is left alone while a server has written to it that recently


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Something that can be freed as a whole."""

    path: Path
    parts: tuple[Path, ...]  # what is deleted; the folder itself goes when nothing is left in it
    size_bytes: int
    age_s: float  # since the last change of anything in it
    because: str


def select(home: Path, *, older_than_s: float, max_bytes: float | None = None) -> list[Item]:
    """Return what to free: all older than ``older_than_s``, then the oldest until ``home`` fits ``max_bytes``."""
    found = sorted(_candidates(home), key=lambda item: -item.age_s)
    chosen = [item for item in found if item.age_s >= older_than_s]
    if max_bytes is not None:
        excess = _measure([home])[0] - sum(item.size_bytes for item in chosen) - max_bytes
        for item in found[len(chosen) :]:
            if excess <= 0:
                break
            chosen.append(_oversized(item))
            excess -= item.size_bytes
    return chosen


def missed_by(home: Path, items: list[Item], max_bytes: float) -> float:
    """Return the bytes that ``home`` holds beyond ``max_bytes`` when the items are gone, 0 where it then fits."""
    return max(0.0, _measure([home])[0] - sum(item.size_bytes for item in items) - max_bytes)


def free(items: list[Item]) -> None:
    """Delete the items' parts; a run that has been taken up since is left alone."""
    for item in items:
        if is_running(item.path):
            continue
        for part in item.parts:
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
        if item.path.is_dir() and not any(item.path.iterdir()):
            item.path.rmdir()


def is_running(run_folder: Path) -> bool:
    """Return whether an attempt of this run is under way here, or may be on another host."""
    return any(_is_alive(file) for file in run_folder.glob("attempt-*.json"))


def _is_alive(file: Path) -> bool:
    try:
        attempt = json.loads(file.read_text())
        if attempt.get("status") != "RUNNING":
            return False
        elsewhere = attempt.get("host") not in (None, socket.gethostname())
        return elsewhere or psutil.pid_exists(int(attempt["pid"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True  # what cannot be read may be in the middle of being written


def _candidates(home: Path) -> Iterator[Item]:
    for run in _entries(home / "runs"):
        if run.is_dir() and not is_running(run):
            parts = [part for part in run.iterdir() if not any(part.match(kept) for kept in KEPT_OF_RUNS)]
            if parts:
                yield _item(run, parts, "run, its outcome is kept")
    for name in CACHES:
        for entry in _entries(home / name):
            yield _item(entry, [entry], name)
    prefect = home / "prefect"
    for entry in _entries(prefect / "storage"):
        yield _item(entry, [entry], "result of a Prefect task")
    rest = [entry for entry in _entries(prefect) if entry.name != "storage"]
    if rest:
        item = _item(prefect, rest, "Prefect's home, its list of flow runs")
        if item.age_s > SERVER_REST_S:
            yield item


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _item(path: Path, parts: list[Path], because: str) -> Item:
    size_bytes, changed_at = _measure(parts)
    age_s = max(0.0, time.time() - changed_at)
    return Item(path=path, parts=tuple(parts), size_bytes=size_bytes, age_s=age_s, because=because)


def _oversized(item: Item) -> Item:
    because = f"{item.because}; over --max-size"
    return Item(path=item.path, parts=item.parts, size_bytes=item.size_bytes, age_s=item.age_s, because=because)


def _measure(paths: list[Path]) -> tuple[int, float]:
    size_bytes, changed_at = 0, 0.0
    for path in paths:
        for each in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
            try:
                state = each.lstat()
            except OSError:
                continue
            size_bytes += 0 if each.is_dir() else state.st_size
            changed_at = max(changed_at, state.st_mtime)
    return size_bytes, changed_at
