"""Progress on stderr: one bar per stage on a terminal, plain lines at a measured pace without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Column

from flows import show, units
from flows.output import plan_path, write_out
from tula_core.progress import Event
from tula_core.records import Plan

LINE_EVERY_S = 5.0

_FIGURES: dict[str, Callable[[float], str]] = {
    "loss": lambda value: f"loss {units.number(value)}",
    "metric": lambda value: f"metric {units.number(value)}",
    "images_per_s": lambda value: f"{units.number(value)} images/s",
    "seconds_left": lambda value: f"{units.duration(value)} left",
}


def line(event: Event, metric: str = "metric") -> str:
    """Return an event as one line: the figures where it carries those of training, else its message."""
    if event.level != "progress" or "images_per_s" not in event.data:
        return event.message
    figures = [show_it(event.data[name]) for name, show_it in _FIGURES.items() if _is_number(event.data.get(name))]
    return ", ".join(figures).replace("metric", metric)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and value - value == 0


class Screen:
    """The watcher of the command line; a context, so that the bars are put away before anything else is printed."""

    def __init__(
        self,
        *,
        plan_file: Path | None = None,
        metric: str = "metric",
        results: Console | None = None,
        remarks: Console | None = None,
    ) -> None:
        self._plan_file = plan_file
        self._metric = metric
        self._results = results or show.results()
        self._remarks = remarks or show.remarks()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Stop drawing and leave the bars as they are; the next event draws new ones below."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def event(self, event: Event) -> None:
        """Show an event of a stage; what is more than progress stays, above the bars or as the end of one."""
        if event.level == "warning" or (event.level == "info" and not self._ends_bar(event)):
            mark = "warning: " if event.level == "warning" else ""
            console = self._bars.console if self._bars is not None else self._remarks
            console.print(f"{mark}{event.message}", style="yellow" if mark else None, soft_wrap=not console.is_terminal)
        elif self._remarks.is_terminal:
            self._draw(event)
        else:
            self._write(event)

    def _ends_bar(self, event: Event) -> bool:
        return event.fraction is not None and event.fraction >= 1

    def say(self, message: str) -> None:
        """Say something that is no stage's event."""
        self._remarks.print(message, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Say something that the user should look at."""
        self.event(Event(stage="command", message=message, level="warning"))

    def planned(self, plan: Plan) -> None:
        """Write the plan's file and print the plan."""
        from tula_core.search.table import display_rows

        self.pause()
        self._metric = show.metric_name(plan)
        path = self._plan_file or plan_path(plan)
        write_out(path, plan.to_json())
        self._results.print()
        show.print_plan(self._results, plan, display_rows(plan))
        self._results.print(f"The plan is in {path}", soft_wrap=True)
        self._results.print()

    def _draw(self, event: Event) -> None:
        if self._bars is None:
            # The message may take a second line: cut short it would hide figures.
            message = TextColumn("{task.description}", table_column=Column(ratio=1, overflow="fold"))
            columns = (TextColumn("{task.fields[stage]:<8}"), BarColumn(bar_width=10), TaskProgressColumn(), message)
            self._bars = Progress(*columns, console=self._remarks, refresh_per_second=8, expand=True)
            self._bars.start()
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self._bars.add_task("", total=None, stage=event.stage)
        done = event.fraction
        self._bars.update(
            self._tasks[event.stage],
            description=line(event, self._metric),
            total=None if done is None else 1.0,
            completed=done or 0.0,
        )

    def _write(self, event: Event) -> None:
        now_s = time.monotonic()
        last = event.fraction is not None and event.fraction >= 1
        if not last and now_s - self._last_s.get(event.stage, -LINE_EVERY_S) < LINE_EVERY_S:
            return
        self._last_s[event.stage] = now_s
        share = "     " if event.fraction is None else f"{100 * event.fraction:3.0f} %"
        self._remarks.print(f"{event.stage:<9} {share} {line(event, self._metric)}", soft_wrap=True)
