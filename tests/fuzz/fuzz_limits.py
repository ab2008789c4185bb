"""What every random example is held to: an end in time, and an error only where it explains itself."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hypothesis import HealthCheck, Phase, settings

from tula_core.errors import TulaError

EXAMPLES: Counter[str] = Counter()
"""By property, counted as they run."""

HANGS_S = 60.0
_SHARE = float(os.environ.get("TULA_FUZZ", "1"))


def examples(count: int) -> settings:
    """Return settings for ``count`` examples, the same at every run and none made simpler where it fails.

    TULA_FUZZ=10 tries ten times as many, at random, and looks for the simplest that fails.
    """
    wide = _SHARE > 1
    return settings(
        max_examples=max(1, round(count * _SHARE)),
        deadline=None,
        derandomize=not wide,
        phases=[Phase.generate, *([Phase.shrink] if wide else [])],
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def tried(name: str, seconds: float = HANGS_S) -> Iterator[None]:
    """Count an example; fail where it does not end in time, or ends with an error that was not meant."""
    EXAMPLES[name] += 1
    before = signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TulaError as error:
        assert len(str(error)) > 20, f"an error that explains nothing: {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hang(number: int, frame: FrameType | None) -> None:
    raise AssertionError("no end in time")
