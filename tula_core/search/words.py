"""Numbers as people read them, and as a job file takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tula_core.records import Candidate, Row, figures

EXPENSE_NAMES = {"cost_usd": "cost", "node_hours": "node time"}
"""What the second axis of the front is called in a sentence, as at the head of the table."""
_UNITS_S = ((86400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """Return a duration as the table shows one.

    >>> duration(4.25), duration(48), duration(1500), duration(90000)
    ('4.25 s', '48.0 s', '25.0 min', '25.0 h')
    """
    return figures.text("time_s", seconds)


def given_duration(seconds: float) -> str:
    """Return a duration that a job states: in whole units where it is some, without the zeros of a rounded one.

    >>> given_duration(7200), given_duration(360000), given_duration(90), given_duration(12.34)
    ('2 h', '100 h', '90 s', '12.3 s')
    """
    whole = next((f"{seconds / size:g} {name}" for size, name in _UNITS_S if seconds % size == 0), None)
    return whole or _plain(duration(seconds))


def memory(size_bytes: float) -> str:
    """Return a size as the table shows one.

    >>> memory(3 * 2**29), memory(2**20)
    ('1.50 GiB', '1.00 MiB')
    """
    return figures.text("memory_bytes", size_bytes)


def given_memory(size_bytes: float) -> str:
    """Return a size that a job states, without the zeros of a rounded one."""
    return _plain(memory(size_bytes))


def expense(value: float, quantity: str) -> str:
    """Return a cost or a time of nodes as the table shows it.

    >>> expense(1.25, "cost_usd"), expense(0.004, "cost_usd"), expense(0.5, "node_hours")
    ('$1.25', '0.40 ¢', '30.0 min of node time')
    """
    return figures.text(quantity, value) + (" of node time" if quantity == "node_hours" else "")


def usd(value: float) -> str:
    """Return an amount of money as the table shows one."""
    return figures.text("cost_usd", value)


def given_usd(value: float, like: float | None) -> str:
    """Return a budget that a job states, in the unit of the cost beside it; None is no cost.

    >>> given_usd(20.0, 12.5), given_usd(0.5, 0.2), given_usd(0.5, None)
    ('$20', '50 ¢', '$0.5')
    """
    return _plain(figures.text("cost_usd", value, like=max(value, 1.0) if like is None else like))


def grams(amount: float) -> str:
    """Return a mass in mg, g, kg or t.

    >>> grams(0.0021), grams(12.34), grams(4560), grams(0)
    ('2.1 mg', '12 g', '4.6 kg', '0 g')
    """
    for unit, size in (("t", 1e6), ("kg", 1e3), ("g", 1.0), ("mg", 1e-3)):
        if amount >= size:
            return f"{_short(amount / size)} {unit}"
    return "0 g" if amount == 0 else f"{_short(amount * 1e3)} mg"


def percent(fraction: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.123), percent(0.0042)
    ('12 %', '0.4 %')
    """
    return f"{100 * fraction:.0f} %" if abs(fraction) >= 0.0995 else f"{100 * fraction:.1f} %"


def chance(probability: float) -> str:
    """Return a chance in whole per cent, rounded down, so that none looks surer than it is.

    >>> chance(0.799), chance(0.8), chance(0.999), chance(1.0), chance(0.004)
    ('79 %', '80 %', 'over 99 %', 'over 99 %', 'under 1 %')
    """
    if probability > 0.99:
        return "over 99 %"
    return f"{math.floor(100 * probability + 1e-9)} %" if probability >= 0.01 else "under 1 %"


def listed(parts: Sequence[str]) -> str:
    """Return parts as people list them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def beside_limit(
    value: float, limit: float, write: Callable[[float], str], given: Callable[[float], str]
) -> tuple[str, str]:
    """Return a value and the limit it breaks as text, the difference spelt out where rounding would hide it.

    >>> beside_limit(61, 30, duration, given_duration), beside_limit(606, 605, duration, given_duration)
    (('61.0 s', '30 s'), ('10.1 min (0.2 % more)', '10.1 min'))
    """
    shown = write(value)
    more = max(value / max(limit, 1e-300) - 1, 0.001)
    return (f"{shown} ({percent(more)} more)" if shown == write(limit) else shown), given(limit)


def describe(candidate: Candidate) -> str:
    """Return a candidate's name in a sentence.

    >>> describe(Candidate(nodes=1, processes_per_node=2, local_batch=64))
    '1 node x 2 processes with global batch 128'
    """
    nodes = f"{candidate.nodes} node{'s' if candidate.nodes > 1 else ''}"
    processes = f"{candidate.processes_per_node} process{'es' if candidate.processes_per_node > 1 else ''}"
    parts = f" ({candidate.accumulation} micro-batches a step)" if candidate.accumulation > 1 else ""
    in_ = "" if candidate.precision is None else f" in {candidate.precision}"
    limit = "" if candidate.power_limit_w is None else f" limited to {candidate.power_limit_w:g} W"
    return f"{nodes} x {processes} with global batch {candidate.global_batch}{parts}{in_}{limit}"


def time_with_interval(row: Row) -> str:
    """Return the forecast of the time to train with its interval."""
    return figures.with_interval("time_to_train_s", row["time_to_train_s"])


def admitting_duration(seconds: float) -> str:
    """Return the shortest round duration, as a job file takes it, that is not below ``seconds``.

    >>> admitting_duration(1801), admitting_duration(120.2), admitting_duration(36010)
    ('31m', '121s', '10.1h')
    """
    if seconds > 7200:
        return f"{math.ceil(seconds / 360) / 10:g}h"
    minutes = math.ceil(seconds / 60)
    return f"{minutes}m" if 60 * minutes <= 1.05 * seconds else f"{math.ceil(seconds)}s"


def admitting_usd(usd: float) -> str:
    """Return the lowest budget in whole cents, below ten cents to two digits, that is not below ``usd``.

    >>> admitting_usd(1.2301), admitting_usd(3.0), admitting_usd(0.00291)
    ('1.24', '3.00', '0.003')
    """
    digits = 2 if usd >= 0.1 or usd <= 0 else min(1 - math.floor(math.log10(usd)), 300)
    shown = math.ceil(round(usd * 10.0**digits, 9)) / 10.0**digits
    return f"{shown:.2f}" if digits == 2 else f"{shown:.{digits}f}".rstrip("0").rstrip(".")


def admitting_size(size_bytes: float) -> str:
    """Return the smallest round size, as a job file takes it, that is not below ``size_bytes``.

    >>> admitting_size(2**30 + 1), admitting_size(2**20)
    ('1.1GiB', '1MiB')
    """
    if size_bytes > 2**30:
        return f"{math.ceil(size_bytes / 2**30 * 10) / 10:g}GiB"
    return f"{math.ceil(size_bytes / 2**20)}MiB"


def _plain(text: str) -> str:
    """Return a figure without the zeros after its point: what a job states is no rounded number."""
    figure, space, unit = text.partition(" ")
    return (figure.rstrip("0").rstrip(".") if "." in figure else figure) + space + unit


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"
