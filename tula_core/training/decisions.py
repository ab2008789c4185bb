"""What the methods of a run decided at each step, as lines of JSON beside the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_NAME = "decisions.jsonl"


class DecisionLog:
    """Keeps a line for each step whose decisions differ from the step before; written where a run looks around.

    Parameters
    ----------
    path
        The file; None on the processes that do not write.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._latest: dict[str, float] | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []

    def add(self, samples: int, decided: Mapping[str, float]) -> None:
        """Take what was decided for the step that ended at ``samples``."""
        if self._path is None or not decided or decided == self._latest:
            return
        self._latest = dict(decided)
        self._waiting.append((samples, self._latest))  # written out later: some decide anew at every step

    def note(self, samples: int, told: Mapping[str, Any]) -> None:
        """Write something beside what is decided at each step, once: a change of method, say."""
        line = json.dumps({"samples": samples, **told})
        if self._path is None or (self._path.exists() and line in self._path.read_text(encoding="utf-8").splitlines()):
            return
        self._waiting.append(line)
        self.flush()

    def flush(self) -> None:
        """Append the waiting lines to the file."""
        if self._path is not None and self._waiting:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"samples": samples, **made}) + "\n" for samples, made in self._waiting)
        self._waiting = []

    def cut(self, samples: int) -> None:
        """Drop lines beyond ``samples``: the run went back to there."""
        self._waiting, self._latest = [], None
        if self._path is not None and self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _samples(line) <= samples]
            self._path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _samples(line: str) -> float:
    """Return the samples of a line; a line that a kill cut short is dropped."""
    try:
        return float(json.loads(line)["samples"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
