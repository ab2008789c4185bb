"""`Watch`: what a worker holds its evaluations against, and whether it hands back when they fall below."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tula_core.training.fallback.expectation import Expectation, Fall
from tula_core.training.state import Progress

GOOD_FILE = "good.pt"
REDUCTIONS_BEFORE_CHANGE = 1  # a rate that diverges twice is not merely a little too high


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """How the methods in force are judged.

    Attributes
    ----------
    expectation
        What the evaluations are held against, None where nothing is expected of them.
    gives_up
        Whether the run is handed back for other methods; else it goes on and only says what it sees.
    most_reductions
        Reductions of the rate after divergence before the run is handed back, or fails.
    """

    expectation: Expectation | None
    gives_up: bool
    most_reductions: int

    @classmethod
    def of(
        cls,
        payload: Mapping[str, Any],
        *,
        higher_is_better: bool,
        warmup_epochs: float,
        epochs: int,
        most_reductions: int,
    ) -> Watch:
        """Return the watch that a task's payload asks for with ``expected`` and ``gives_up``."""
        gives_up = bool(payload.get("gives_up"))
        expectation = Expectation.of(
            payload.get("expected"), higher_is_better=higher_is_better, warmup_epochs=warmup_epochs, last=epochs
        )
        most = REDUCTIONS_BEFORE_CHANGE if gives_up else most_reductions
        return cls(expectation=expectation, gives_up=gives_up, most_reductions=most)

    @property
    def keeps_good(self) -> bool:
        """Whether weights are kept that a change of method could go on from."""
        return self.gives_up and self.expectation is not None

    def fall(self, progress: Progress) -> Fall | None:
        """Return where a run had first fallen below what is expected of it; one at its target never has."""
        if self.expectation is None or progress.target_reached:
            return None
        return self.expectation.fall(_points(progress.curve))

    def is_good(self, curve: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the weights of the latest evaluation are worth going on from."""
        return self.expectation is not None and self.expectation.good(_points(curve)) == len(curve) - 1


def fall_report(fall: Fall, samples: int) -> dict[str, Any]:
    """Return a fall that was seen after some samples as plain values."""
    return {
        "cause": "below forecast",
        "samples": samples,
        "epochs": fall.epochs,
        "seen": plain_number(fall.seen),
        "forecast": asdict(fall.forecast),
    }


def plain_number(value: float) -> float | None:
    """Return a number that JSON can hold, None for one that is not finite."""
    return value if math.isfinite(value) else None


def keep_good(checkpoint: Path) -> None:
    """Keep the checkpoint that was just written beside the later ones; a link where the disk has them, else a copy."""
    kept, new = checkpoint.with_name(GOOD_FILE), checkpoint.with_name(f".{GOOD_FILE}.new")
    new.unlink(missing_ok=True)
    try:
        os.link(checkpoint, new)
    except OSError:
        shutil.copyfile(checkpoint, new)
    os.replace(new, kept)


def drop_good(checkpoint: Path) -> None:
    """Remove what `keep_good` kept, where it is there."""
    with contextlib.suppress(FileNotFoundError):
        checkpoint.with_name(GOOD_FILE).unlink()


def _points(curve: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return [(float(point["epochs"]), float(point["metric"])) for point in curve]
