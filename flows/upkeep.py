"""The verbs around the pipeline: history, retrain, list, doctor, clean."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from flows.output import check_out, write_out
from tula_core.errors import InputError, RunError


def history(
    as_csv: Annotated[bool, typer.Option("--csv", help="Every quantity of every run as CSV.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write; implies --csv.")] = None,
) -> None:
    """Show predicted against actual for every job so far."""
    from flows import show, show_history
    from tula_core import api
    from tula_core.history import summary, to_csv

    check_out(out)
    outcomes = api.outcomes()
    if out is not None:
        write_out(out, to_csv(outcomes))
        typer.echo(f"{len(outcomes)} {'run is' if len(outcomes) == 1 else 'runs are'} in {out}")
    elif as_csv:
        typer.echo(to_csv(outcomes), nl=False)
    elif not outcomes:
        typer.echo("No run has been recorded yet. Begin with: tula run digits-cnn")
    else:
        console = show.results()
        show_history.print_history(console, outcomes)
        show_history.print_quality(console, summary(outcomes))
        show.print_next(console, "tula history --csv", "tula retrain")


def retrain() -> None:
    """Retrain the predictor from history.

    The new one is checked on jobs left out and promoted only if it is better.
    """
    from flows import show, show_history
    from flows.live import Screen
    from tula_core import api

    with Screen() as screen:
        report = api.retrain(listener=screen.event)
    console = show.results()
    show_history.print_retrain(console, report)
    show.print_next(console, "tula history", "tula plan JOB")


def list_known() -> None:
    """List everything that has a name, with a line each.

    Jobs, workloads, networks, data sets, mitigations.
    """
    from flows import show
    from flows.catalogue import catalogue

    console = show.results()
    for kind, entries in catalogue():
        console.print(kind, style="bold")
        width = max((len(name) for name, _ in entries), default=0)
        for name, line in entries:
            head, indent = f"  {name:<{width}}  ", " " * (width + 4)
            room = max(console.width, len(indent) + 40)
            text = textwrap.fill(line, room, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
            console.print(text, soft_wrap=True)


def doctor() -> None:
    """Check the machine; say how to fix what is wrong.

    Looks at torch, devices, gloo or nccl, MLflow, Prefect, the clock and the disk.
    """
    from flows import show
    from flows.doctor import examine

    console = show.results()
    failed = []
    for check in examine():
        mark, style = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}[check.status]
        console.print(f"{mark}  {check.name}: {check.found}", style=None if check.status == "ok" else style)
        if check.status != "ok":
            console.print(f"      {check.remedy}", soft_wrap=True)
        if check.status == "fail":
            failed.append(check.name)
    if failed:
        raise RunError(f"{', '.join(failed)}: not as it must be; the lines above say how to fix it")


def clean(
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="For example 12h or 30d.")] = "30d",
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Free the oldest beyond this, for example 5GiB.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what would be done.")] = False,
) -> None:
    """Free state by age and size.

    Only says what it would do, unless --yes. Never frees a run that is under way, MLflow's records or what was learnt.
    """
    from flows import units
    from flows.clean import free, missed_by, select
    from tula_core.home import tula_home
    from tula_core.job import parse_duration_s, parse_size_bytes

    age_s = _amount("--older-than", older_than, parse_duration_s, "12h or 30d")
    size_bytes = None if max_size is None else _amount("--max-size", max_size, parse_size_bytes, "500MB or 5GiB")
    chosen = select(tula_home(), older_than_s=age_s, max_bytes=size_bytes)
    for item in chosen:
        typer.echo(
            f"{'free' if yes else 'would free'}  {units.size(item.size_bytes):>10}  {item.path}  ({item.because})"
        )
    over_bytes = 0.0 if size_bytes is None else missed_by(tula_home(), chosen, size_bytes)
    total = units.size(sum(item.size_bytes for item in chosen))
    if not chosen:
        typer.echo("Nothing to free.")
    elif yes:
        free(chosen)
        typer.echo(f"Freed {total}.")
    else:
        typer.echo(f"{total} would be freed. Do it with --yes.")
    if over_bytes and size_bytes is not None:
        typer.echo(
            f"warning: {units.size(size_bytes + over_bytes)} {'are' if yes else 'would be'} left, more than --max-size "
            f"{max_size}: the rest is what is never freed (runs under way, outcomes, MLflow's records, the spool, what "
            "was learnt).",
            err=True,
        )


def _amount(option: str, text: str, parse: object, example: str) -> float:
    try:
        value = parse(text)  # type: ignore[operator]
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is not understood, {error}. Write for example {example}.") from None
    if not isinstance(value, (int, float)) or not 0 <= value < 1e30:
        raise InputError(f"{option}: {text!r} is out of range, it must be zero or more. Write for example {example}.")
    return value
