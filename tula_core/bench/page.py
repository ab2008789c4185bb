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

## How the priors were learnt

`python -m tula_core.bench.learn KIND --data DIR` makes each file of priors that the package carries: of step time the
mean and covariance of scale-free parameters over (cluster, network) pairs, by empirical Bayes; of epochs the spread
of the critical batch and the shape of the curve over benchmarks; of scaling and of transfers between devices the
spreads of accelerators, families and datasheet facts; of energy the law's parameters over (accelerator, network)
groups; of reach how the best metric falls with the batch. Each file holds such means and spreads alone: no row,
network or cluster can be looked up in it. The forms of the laws were chosen while looking at these data, so "left
out" tests the priors and not the forms: other measurements may be missed by more.
"""


def page(results: Iterable[BenchResult]) -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for result in results:
        kind = load_kind(result.kind)
        parts.append(f"## {kind.name}\n\n{_sentence(kind.summary)} Data: {_sentence(kind.source)}\n")
        parts.append(_method(result.kind))
        parts += [_section(table) for table in result.tables]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text[:1].islower() and "/" not in text.split()[0] else text


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
