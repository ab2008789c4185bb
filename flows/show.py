"""What the results look like on a terminal of 80 columns, and the same without one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import units
from flows.show_cells import methods_cell, stages_cell
from flows.show_methods import method_lines
from flows.show_what_if import what_if_lines
from tula_core.records import Outcome, Plan, Profile
from tula_core.records.candidate import QUANTITIES, Interval, Row
from tula_core.records.outcome import LABELS, SPENT


class OpenConsole(Console):
    """A console that falls silent when its reader goes away, and lets the run go on."""

    def on_broken_pipe(self) -> None:
        """Send the rest nowhere."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def results() -> Console:
    """Return the console for results, on stdout."""
    return OpenConsole(highlight=False, markup=False, emoji=False)


def remarks() -> Console:
    """Return the console for progress, warnings and hints, on stderr."""
    return OpenConsole(stderr=True, highlight=False, markup=False, emoji=False)


def machine(hardware: Mapping[str, Any]) -> str:
    """Return one line about the machine a plan holds for; keys as in `tula_core.records.Hardware`."""
    parts = [_count(hardware["cores"], "core"), f"{units.size(hardware['memory_bytes'])} memory"]
    if hardware["device"] == "cuda":
        memory = units.size(hardware.get("device_memory_bytes"))
        parts.append(f"{hardware['devices']} x {hardware['device_name']} with {memory}")
    else:
        parts.append(f"no accelerator ({hardware['device_name']})")
    parts.append(f"{_count(hardware['threads_per_process'], 'thread')} a process")
    return "Machine: " + ", ".join(parts)


def print_plan(console: Console, plan: Plan, rows: Iterable[int]) -> None:
    """Print the forecast, the knee, the choice and the reason."""
    shown = list(rows)
    title = f"Forecast for {plan.job.title}: the best and their neighbours, {len(shown)} of {len(plan.table)} rows"
    console.print(Text(machine(plan.hardware)))
    console.print(Text(title, style="bold"))
    console.print(forecast_table(plan, shown))
    console.print(Text(_legend(plan, shown)))
    console.print(Text(_reading(plan)))
    for index in shown:
        if not plan.table[index].feasible:
            console.print(Text(f"row {index} is infeasible: {plan.table[index].infeasible_because}"))
    console.print()
    if plan.knee is not None:
        console.print(Text(f"Knee:   row {plan.knee}, {setting(plan.table[plan.knee])}"))
    if plan.choice is None:
        console.print(Text("Choice: none, nothing is feasible", style="bold"))
    else:
        console.print(Text(f"Choice: row {plan.choice_index}, {setting(plan.choice)}", style="bold"))
    console.print(Text(plan.reason))
    for line in (*method_lines(plan, share=is_share(plan)), *what_if_lines(plan)):
        console.print(Text(line))
    console.print(Text(f"Predictor: {plan.predictor}. {_probe(plan)}"))
    if plan.assumptions:
        console.print(Text("Assumed:"))
    for assumption in plan.assumptions:
        console.print(Text(f"- {assumption}"), style="dim")


def _reading(plan: Plan) -> str:
    """Return how the table is read: which value of a distribution stands in it, and where the other rows are."""
    cluster = plan.job.cluster
    on_spot = cluster.price_per_node_hour is None and cluster.spot_interruptions_per_hour
    means = "; cost and node time of spot nodes are means" if on_spot else ""
    return (
        f"First lines are the likely values (medians{means}), second lines 90 % intervals. All rows, by number from 0, "
        "are in the plan's file."
    )


def _probe(plan: Plan) -> str:
    if plan.probe.cached:
        return f"Measured earlier in {units.duration(plan.probe.seconds)}, nothing was measured now."
    cost = "" if plan.probe.cost_usd is None else f" for {units.text('cost_usd', plan.probe.cost_usd)}"
    return f"Measured in {units.duration(plan.probe.seconds)}{cost}, which is not part of the forecast."


def setting(row: Row) -> str:
    """Return a row's way to train in words."""
    c = row.candidate
    spread = f"{_count(c.nodes, 'node')} with {_count(c.processes_per_node, 'process')}"
    batch = f"local batch {c.local_batch}" + (f" accumulated {c.accumulation} times" if c.accumulation > 1 else "")
    with_ = f", with {' and '.join(c.mitigation)}" if c.mitigation else ""
    in_ = "" if c.precision is None else f", in {c.precision}"
    limit = "" if c.power_limit_w is None else f", limited to {c.power_limit_w:g} W"
    return f"{spread}, {batch}: global batch {c.global_batch}{with_}{in_}{limit}"


def _count(count: int, noun: str) -> str:
    plural = {"process": "processes"}.get(noun, f"{noun}s")
    return f"{count} {noun if count == 1 else plural}"


def forecast_table(plan: Plan, rows: Iterable[int]) -> Table:
    """Return the table of ``rows``, each in two lines: the values, and the intervals in the same units."""
    spent = "cost_usd" if any(row["cost_usd"].value is not None for row in plan.table) else "node_hours"
    shown = ("epochs", "time_to_train_s", spent, "memory_bytes", "accuracy")
    several = len({row.candidate.mitigation for row in plan.table}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    heads = ("row", "nodes\nx proc", "local x\naccum.", "global\nbatch", "epochs", "time")
    for head in (*heads, "cost" if spent == "cost_usd" else "node\ntime", "memory", metric_name(plan)):
        table.add_column(head, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for index in rows:
        row = plan.table[index]
        c = row.candidate
        cells = [str(index), f"{c.nodes} x {c.processes_per_node}", _batch(row, methods=several)]
        spans = [units.span(name, row[name], share=is_share(plan)) for name in shown]
        style = "bold green" if index == plan.choice_index else "" if row.feasible else "dim"
        cells += [str(c.global_batch), *(f"{value}\n{between}" for value, between in spans), marks(plan, index)]
        table.add_row(*cells, style=style)
    return table


def _batch(row: Row, *, methods: bool) -> str:
    """Return local batch and accumulation; below the methods, another precision, a power limit, stages."""
    c = row.candidate
    names = methods_cell(c.mitigation) if methods else ""
    limit = None if c.power_limit_w is None else f"{c.power_limit_w:g} W"
    parts = (f"{c.local_batch} x {c.accumulation}", names, c.precision, limit, stages_cell(c.stages or ()))
    return "\n".join(part for part in parts if part)


def metric_name(plan: Plan) -> str:
    """Return the name of the metric that the quantity ``accuracy`` stands for."""
    return str(plan.facts.get("metric") or "accuracy")


def is_share(plan: Plan) -> bool:
    """Return whether the metric is a share, to be shown as per cent."""
    return "accuracy" in metric_name(plan)


def marks(plan: Plan, index: int) -> str:
    """Return the letters that mark a row in the table; the legend below it says what they mean."""
    row = plan.table[index]
    marks = {
        "*": index == plan.choice_index,
        "K": index == plan.knee,
        "F": index in plan.pareto,
        "e": not row.measured,
        "x": not row.feasible,
    }
    return "".join(mark for mark, holds in marks.items() if holds)


def _legend(plan: Plan, rows: Iterable[int]) -> str:
    meanings = {
        "*": "the choice",
        "K": "the knee",
        "F": "on the front",
        "e": "step time extrapolated",
        "x": "infeasible",
    }
    present = set("".join(marks(plan, index) for index in rows))
    return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in present)


def print_outcome(console: Console, outcome: Outcome, *, share: bool = True) -> None:
    """Print predicted beside actual, with the error of each and whether it lies inside the interval."""
    console.print(Text(f"Predicted and actual, run {outcome.job_id}, attempt {outcome.attempt}", style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for head in ("predicted", "90 %", "actual", "error"):
        table.add_column(head, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for name in QUANTITIES:
        cells = _compared(outcome, name, share)
        if cells is not None:
            table.add_row(LABELS[name], *cells)
    console.print(table)
    for line in _endings(outcome):
        console.print(Text(line))


def _compared(outcome: Outcome, name: str, share: bool) -> tuple[str, ...] | None:
    predicted, actual = outcome.predicted.get(name), outcome.actual.get(name)
    if predicted is None and actual is None:
        return None
    low, high = outcome.predicted_low.get(name), outcome.predicted_high.get(name)
    known = predicted is not None and low is not None and high is not None
    interval = Interval(value=predicted, low=low, high=high) if known else Interval(value=None, low=None, high=None)
    value, between = units.span(name, interval, share=share)
    error = outcome.error_pct(name)
    inside = "" if actual is None or low is None or high is None else "inside" if low <= actual <= high else "outside"
    inside = "resumed" if inside and outcome.resumed and name in SPENT else inside
    shown = units.NOTHING if error is None else f"{error:+.1f} %"
    return value, between, units.text(name, actual, share=share), shown, inside


def _endings(outcome: Outcome) -> list[str]:
    lines = []
    if outcome.status != "FINISHED":
        lines.append(f"The run is {outcome.status}: {outcome.failure or 'no cause is known'}")
    if outcome.resumed and outcome.status == "FINISHED":
        lines.append(
            f"It took {outcome.attempt} attempts and spent what all of them did; the forecast is for one, so that time "
            "and cost are not judged."
        )
    if outcome.target_reached is not None:
        lines.append(f"The target was {'reached' if outcome.target_reached else 'not reached'}.")
    lines += [f"The methods were a wrong guess and were changed: {change.words()}" for change in outcome.method_changes]
    if outcome.learning_rate_reductions:
        times = _count(outcome.learning_rate_reductions, "time")
        lines.append(f"Training diverged and was begun again with a lower rate {times}.")
    return lines


def print_next(console: Console, *commands: str) -> None:
    """Print the commands to type next."""
    console.print()
    console.print(Text("Next: " + ", or ".join(commands), style="cyan"), soft_wrap=True)


def print_profile(console: Console, profile: Profile, *, cached: bool) -> None:
    """Print the machine and what was measured, step by step."""
    console.print(Text(machine(dataclasses.asdict(profile.hardware))))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("nodes\nx proc", "local x\naccum.", "step", "+-", "loader", "compute", "commun-\nication", "images/s"):
        table.add_column(head, justify="right", overflow="fold")
    order = ("nodes", "processes_per_node", "local_batch", "accumulation")
    for step in sorted(profile.steps, key=lambda step: tuple(getattr(step, name) for name in order)):
        images = step.nodes * step.processes_per_node * step.local_batch * step.accumulation / step.step_time_s
        parts = (step.step_time_s, step.step_time_error_s, step.loader_s, step.compute_s, step.communication_s)
        split = (f"{step.nodes} x {step.processes_per_node}", f"{step.local_batch} x {step.accumulation}")
        table.add_row(*split, *(units.duration(part) for part in parts), units.number(images))
    console.print(table)
    noise = profile.noise.noise_scale_samples if profile.noise is not None else None
    if noise is not None:
        console.print(Text(f"Gradient noise scale: {units.number(noise)} samples"))
    if profile.learning_rate is not None:
        summary = profile.learning_rate.summary
        console.print(Text(summary[:1].upper() + summary[1:]))
    use = profile.probe
    when = "earlier, nothing was measured now" if cached else use.stopped_because
    console.print(Text(f"Measured in {units.duration(use.used_s)} of {units.duration(use.budget_s)}: {when}"))
