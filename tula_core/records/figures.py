"""A row's quantities as people read them: one way to write each, in tables and in sentences alike."""

from __future__ import annotations

import math

from tula_core.records.candidate import Interval

_TIMES = ((86400.0, "d", 2.0), (3600.0, "h", 2.0), (60.0, "min", 2.0), (1.0, "s", 1.0), (1e-3, "ms", 0.0))
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_ENERGIES = ((3.6e6, "kWh"), (1e3, "kJ"))

_LEAST_SHOWN = 1e-3

NOTHING = "-"
CENT = "¢"


def number(value: float) -> str:
    """Return ``value`` with three significant digits and no exponent.

    >>> [number(x) for x in (0, 0.01234, 1.2, 14.25, 1234.5, -7)]
    ['0', '0.0123', '1.20', '14.2', '1,234', '-7.00']
    """
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(digits, 0), 9)}f}"


def scale(quantity: str, value: float, *, share: bool = True) -> tuple[float, str]:
    """Return the size and the name of the unit in which to show ``value`` of a row's quantity.

    Parameters
    ----------
    share
        Whether the quantity ``accuracy`` is a share, shown as per cent; other metrics are shown as they are.
    """
    if quantity.endswith("_s"):
        if value == 0:
            return 1.0, "s"
        return next(((size, name) for size, name, least in _TIMES if value >= least * size), (1e-3, "ms"))
    if quantity == "node_hours":
        size, name = scale("time_s", value * 3600)
        return size / 3600, name
    if quantity == "memory_bytes":
        return next(((size, name) for size, name in _SIZES if value >= size), (1.0, "B"))
    if quantity == "energy_j":
        return next(((size, name) for size, name in _ENERGIES if value >= size), (1.0, "J"))
    if quantity == "accuracy" and share:
        return 0.01, "%"
    if quantity == "cost_usd" and 0 < value < 1:
        return 0.01, CENT
    return 1.0, ""


def text(quantity: str, value: float | None, *, share: bool = True, like: float | None = None) -> str:
    """Return one value of a row's quantity with its unit, a dash where it is unknown.

    Parameters
    ----------
    share
        As in `scale`.
    like
        A value in whose unit this one is shown; None for its own.

    >>> text("time_to_train_s", 852.0), text("memory_bytes", 2**29), text("accuracy", 0.9712), text("cost_usd", None)
    ('14.2 min', '512 MiB', '97.1 %', '-')
    >>> text("cost_usd", 0.5), text("cost_usd", 0.5, like=1.2)
    ('50.0 ¢', '$0.50')
    """
    if value is None:
        return NOTHING
    size, name = scale(quantity, value if like is None else like, share=share)
    sign = "$" if quantity == "cost_usd" and name != CENT else ""
    return f"{sign}{_figure(quantity, value / size)} {name}".rstrip()


def span(quantity: str, interval: Interval, *, share: bool = True) -> tuple[str, str]:
    """Return the value with its unit, and the interval in the same unit without it.

    >>> span("time_to_train_s", Interval(value=852.0, low=726.0, high=1038.0))
    ('14.2 min', '12.1-17.3')
    """
    ends = _ends(quantity, interval, share)
    return (NOTHING, "") if ends is None else (text(quantity, interval.value, share=share), "-".join(ends))


def with_interval(quantity: str, interval: Interval, *, share: bool = True) -> str:
    """Return a known value and its interval as a sentence has them, in one unit.

    >>> with_interval("time_to_train_s", Interval(value=852.0, low=726.0, high=1038.0))
    '14.2 min (12.1 to 17.3 min)'
    """
    ends = _ends(quantity, interval, share)
    assert ends is not None and interval.value is not None, "an interval in a sentence is known"
    _, name = scale(quantity, interval.value, share=share)
    low, high = ends
    return f"{text(quantity, interval.value, share=share)} ({f'{low} to {high} {name}'.rstrip()})"


def _ends(quantity: str, interval: Interval, share: bool) -> tuple[str, str] | None:
    """Return both ends in the unit of the value, None where they are unknown."""
    if interval.value is None or interval.low is None or interval.high is None:
        return None
    size, _ = scale(quantity, interval.value, share=share)
    # Beside the value a low end far below it is nothing: its digits would not fit a narrow table.
    nothing = quantity != "accuracy" and 0 <= interval.low < _LEAST_SHOWN * interval.value
    return "0" if nothing else _figure(quantity, interval.low / size), _figure(quantity, interval.high / size)


def _figure(quantity: str, value: float) -> str:
    if quantity == "steps":
        return f"{value:,.0f}"
    if quantity == "epochs":  # an interval of four digits would not fit a narrow table
        return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
    if quantity == "memory_bytes" and value < 10:
        return f"{value:.2f}"
    if quantity == "cost_usd" and 0 < value < 1:
        # Two digits, no more than thousandths of a cent: more would not fit a narrow table.
        return f"{value:.{min(1 - math.floor(math.log10(value)), 3)}f}"
    return number(value)
