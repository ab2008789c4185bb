"""What was learnt from runs, on a terminal of 80 columns: the history of forecasts, and what retraining came to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import units
from flows.show_cells import methods_cell, stages_cell
from tula_core.records import Outcome
from tula_core.records.candidate import QUANTITIES
from tula_core.records.outcome import LABELS

if TYPE_CHECKING:
    from tula_core.history import Quality

_METHODS_WIDTH = 9  # of what a whole row of 80 columns leaves


def print_history(console: Console, outcomes: Iterable[Outcome]) -> None:
    """Print each run: how it trained, and predicted and actual time and accuracy with the error.

    How it trained is the layout and the methods in force at its end, and the stages that it went through.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("job,\nfinished", overflow="fold")
    for head in ("choice", "time\nforecast", "\nactual", "\nerror", "accuracy\nforecast", "\nactual", "status"):
        table.add_column(head, justify="right", overflow="fold")
    resumed = 0
    for outcome in outcomes:
        table.add_row(*_history_cells(outcome))
        resumed += _is_resumed(outcome)
    console.print(table)
    if resumed:
        runs, have = ("run was", "its") if resumed == 1 else ("runs were", "their")
        console.print(
            Text(
                f"{resumed} {runs} resumed after a stop: {have} time and cost are those of all attempts, the forecast "
                "is for one, and they are not judged by it."
            )
        )


def print_quality(console: Console, quality: Mapping[str, Quality]) -> None:
    """Print the typical error of each quantity over the runs that finished, and how often the interval held."""
    if not quality:
        return
    console.print(Text("error: by how much the forecast lay above (+) or below (-) what was measured"))
    for name, found in quality.items():
        held = "" if found.coverage is None else f", inside the 90 % interval {100 * found.coverage:.0f} %"
        median = f"median error {found.median_abs_error_pct:.1f} %{held}"
        console.print(Text(f"{LABELS[name]}: {median} ({found.jobs} {'run' if found.jobs == 1 else 'runs'})"))


def print_retrain(console: Console, report: Any) -> None:
    """Print the errors of champion and challenger on jobs left out, what was learnt of methods, and the verdict."""
    rows = list(_error_rows(report))
    if rows:
        console.print(Text("Typical error on jobs left out", style="bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("", overflow="fold")
        table.add_column("champion", justify="right")
        table.add_column("challenger", justify="right")
        for label, *errors in rows:
            table.add_row(str(label), *(_log_error(error) for error in errors))
        console.print(table)
    for line in learnt_lines(report):
        console.print(Text(line))
    reason = str(report.reason)
    console.print(Text(reason[:1].upper() + reason[1:] + ".", style="bold" if report.promoted else ""))


def learnt_lines(report: Any) -> Iterator[str]:
    """Yield in words what the challenger learnt of each method, and which methods were replaced in training."""
    methods = {} if report.challenger is None else report.challenger.by_method
    if methods:
        yield "Of methods that no pilot trains with, beside what was known of them"
    for name, learnt in methods.items():
        yield f"- {name}: {learnt.words()}, by {learnt.evidence()}"
    for name, count in report.replaced.items():
        times = "a run" if count == 1 else f"{count} runs"
        yield f"{name} was given up on the way in {times}: that tells against it, by how much is unknown, not counted"


def _is_resumed(outcome: Outcome) -> bool:
    return outcome.resumed and outcome.status == "FINISHED"


def _history_cells(outcome: Outcome) -> list[str]:
    error = outcome.error_pct("time_to_train_s")
    named = {name: (outcome.predicted.get(name), outcome.actual.get(name)) for name in ("time_to_train_s", "accuracy")}
    time, accuracy = ([units.text(quantity, value) for value in pair] for quantity, pair in named.items())
    choice = f"{outcome.nodes} x {outcome.processes_per_node}\n{outcome.local_batch} x {outcome.accumulation}"
    more = (methods_cell(outcome.mitigation, _METHODS_WIDTH), outcome.precision, _stages(outcome))
    choice = "\n".join((choice, *(part for part in more if part)))
    shown = units.NOTHING if error is None else f"{error:+.0f} %"
    head = f"{outcome.job_name}\n{outcome.finished_at[:16].replace('T', ' ')}"
    status = outcome.status.lower() + ("\nresumed" if _is_resumed(outcome) else "")
    status += "\nmethods\nchanged" if outcome.method_changes else ""
    status += "\ntarget missed" if outcome.status == "FINISHED" and outcome.target_reached is False else ""
    return [head, choice, *time, shown, *accuracy, status]


def _stages(outcome: Outcome) -> str:
    """Return the stages that trained, and how far they came where the run ended before the last layout."""
    lines = [stages_cell(outcome.stages)]
    for last in outcome.stages[-1:]:
        if (last.nodes, last.processes_per_node) != (outcome.nodes, outcome.processes_per_node):
            lines.append(f"up to {last.nodes} x {last.processes_per_node}")
    return "\n".join(line for line in lines if line)


def _error_rows(report: Any) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield what an error is of, and it with champion and challenger: of quantities, then of methods."""
    old, new = report.champion_error, report.challenger_error
    for name in (name for name in QUANTITIES if name in old or name in new):
        yield LABELS[name], old.get(name), new.get(name)
    old, new = report.champion_method_error, report.challenger_method_error
    for name in (*old, *(name for name in new if name not in old)):
        yield f"gap to the best metric, {name}", old.get(name), new.get(name)


def _log_error(value: float | None) -> str:
    return units.NOTHING if value is None else f"{100 * math.expm1(value):.1f} %"
