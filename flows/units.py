"""Numbers as people read them: seconds to days, bytes to GiB, shares as per cent."""

from __future__ import annotations

from tula_core.records.figures import CENT, NOTHING, number, scale, span, text

__all__ = ["CENT", "NOTHING", "duration", "number", "scale", "size", "span", "text"]


def duration(seconds: float | None) -> str:
    """Return a length of time.

    >>> duration(72.0), duration(None)
    ('72.0 s', '-')
    """
    return text("time_s", seconds)


def size(count: float | None) -> str:
    """Return a number of bytes.

    >>> size(1.2 * 2**30)
    '1.20 GiB'
    """
    return text("memory_bytes", count)
