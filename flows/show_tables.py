"""Titled tables of figures on a terminal, such as those of a backtest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from tula_core.bench.kind import Table


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Print each table with its title above and its note below, figures rounded to four digits."""
    for table in tables:
        console.print(f"\n{table.title}", style="bold")
        text = table.frame.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="")
        console.print(text, soft_wrap=True)
        if table.note:
            console.print(table.note)
