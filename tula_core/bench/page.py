"""The page of the documentation that shows all backtests side by side, written by one run."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tula_core.bench import KINDS, load_kind
from tula_core.bench.kind import Table
from tula_core.bench.run import BenchResult

_HEAD = """# Backtests on other people's measurements

Written by `tula bench all --data DIR --page docs/benchmarks.md --leave-out`; every figure comes from that one run. The
measurements are not part of this repository: each section names the public repository that holds them. "Left out"
tables say how far off the same models are when the priors were learnt without the cluster, benchmark or network that is
predicted: expect those errors on a machine of your own.
"""


def page(results: Iterable[BenchResult]) -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for result in results:
        kind = load_kind(result.kind)
        parts.append(f"## {kind.name}\n\n{kind.summary} Data: {kind.source}\n")
        parts.append(_method(result.kind))
        parts += [_section(table) for table in result.tables]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _method(name: str) -> str:
    """Return what the kind's module says of itself: how it predicts, and how its priors were learnt."""
    return inspect.cleandoc(sys.modules[KINDS[name]].__doc__ or "") + "\n"


def _section(table: Table) -> str:
    rows = [[_cell(value) for value in row] for row in table.frame.itertuples(index=False)]
    text = f"### {table.title}\n\n{markdown([str(name) for name in table.frame.columns], rows)}"
    return text + (f"\n{table.note}\n" if table.note else "")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a"], [["1"]]))
    | a |
    |---|
    | 1 |
    <BLANKLINE>
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)
