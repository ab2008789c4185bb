"""The command line: ``tula VERB``.

Only what parsing and a clear message need is imported here; torch, MLflow, Prefect and Optuna take seconds each, and
``tula --help`` and a mistake in a job must answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from flows import upkeep, verbs
from flows.bench import bench
from flows.failures import verb

app = typer.Typer(
    name="tula",
    help="Choose nodes and batch size for training a vision network, know the bill before the run, train there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from tula_core import __version__

        typer.echo(f"tula {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Take the options that come before the verb."""


_VERBS: dict[str, Callable[..., None]] = {
    "run": verbs.run,
    "plan": verbs.plan,
    "train": verbs.train,
    "profile": verbs.profile,
    "history": upkeep.history,
    "retrain": upkeep.retrain,
    "bench": bench,
    "list": upkeep.list_known,
    "doctor": upkeep.doctor,
    "clean": upkeep.clean,
}
for _name, _function in _VERBS.items():
    app.command(_name)(verb(_function))


def main() -> None:
    """Run the command line; the console script ``tula``."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell; what a child opens must not take its number either
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    app(prog_name="tula")


if __name__ == "__main__":
    main()
