"""The verb bench: predictions for measured data, and how far off they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.output import check_out, write_out
from tula_core.errors import InputError

if TYPE_CHECKING:
    from tula_core.bench.run import BenchResult

Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="step-time, epochs, scaling, energy, reach, active or all.", show_default=False
    ),
]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder that holds the CSV files.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The CSV file of predictions; for all a folder.")
]
LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Also with priors learnt without what is predicted; takes longer.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FOLDER", help="Write pictures of errors and coverage.")]
Page = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write all tables as a Markdown page.")]


def bench(
    kind: Kind, data: Data, out: Out = None, leave_out: LeaveOut = False, plot: Plot = None, page: Page = None
) -> None:
    """Predict measured data of other people's clusters and say how far off the predictions are."""
    from tula_core.bench.discover import find_folders, folder_of
    from tula_core.bench.page import page as page_text
    from tula_core.bench.run import run_bench

    check_out(page)
    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot: {str(plot)!r} is a file. Name a folder.")
    files: dict[str, Path | None]
    if kind == "all":
        folders, files = find_folders(data), _files_of_all(out)
    else:
        check_out(out)
        folders, files = {kind: folder_of(data, kind)}, {kind: out}
    results, failed = [], []
    for name, folder in folders.items():
        try:
            result = run_bench(name, folder, leave_out=leave_out, out=files.get(name))
        except InputError as error:
            if kind != "all":
                raise
            failed.append(name)
            typer.echo(f"error: {name}: {error}", err=True)
            continue
        results.append(result)
        _show(result, folder, files.get(name), plot)
    if page is not None and results:
        write_out(page, page_text(results))
        typer.echo(f"The page is {page}" + (f", without {', '.join(failed)}" if failed else ""))
    if failed:
        raise InputError(
            f"--data: {len(failed)} of {len(folders)} kinds could not be predicted: {', '.join(failed)}. Their errors "
            "stand above; mend those files, or ask for another kind by its name."
        )


def _files_of_all(out: Path | None) -> dict[str, Path | None]:
    """Return the file of each kind in the folder ``out``."""
    if out is None:
        return {}
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {str(out)!r} is a file, and all writes one file for each kind. Name a folder.")
    from tula_core.bench import KINDS

    files: dict[str, Path | None] = {name: out / f"{name}.csv" for name in KINDS}
    for path in files.values():
        check_out(path)
    return files


def _show(result: BenchResult, folder: Path, out: Path | None, plot: Path | None) -> None:
    from flows.show import results
    from flows.show_tables import print_tables
    from tula_core.bench.run import draw

    if out is not None:
        typer.echo(f"{len(result.predictions)} predictions of {result.kind} are in {out}")
    print_tables(results(), result.tables)
    if result.warning:
        typer.echo(f"Warning: {result.warning}", err=True)
    elif not result.tables:
        typer.echo(f"{folder} holds no answers for {result.kind}, so no error can be told.")
    if plot is not None:
        path = draw(result, folder, plot)
        typer.echo(f"The picture is {path}" if path else f"There is nothing to draw for {result.kind}.")
