"""The verb bench: predictions for measured data, and how far off they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.output import check_out

Kind = Annotated[
    str, typer.Argument(metavar="KIND", help="step-time, epochs, scaling, energy, reach or active.", show_default=False)
]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder that holds the CSV files.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The CSV file of predictions to write.")]
LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Also with priors learnt without what is predicted; takes longer.")
]


def bench(kind: Kind, data: Data, out: Out = None, leave_out: LeaveOut = False) -> None:
    """Predict measured data of other people's clusters and say how far off the predictions are."""
    from flows.show import results
    from flows.show_tables import print_tables
    from tula_core.bench.run import run_bench, write_predictions

    check_out(out)
    result = run_bench(kind, data, leave_out=leave_out)
    if out is not None:
        write_predictions(result.predictions, out)
        typer.echo(f"{len(result.predictions)} predictions are in {out}")
    print_tables(results(), result.tables)
