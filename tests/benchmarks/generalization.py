"""How much of a small batch's accuracy each method keeps at a large batch, at equal epochs.

``python -m tests.benchmarks.generalization [--quick] [--jobs a,b] [--methods a,b] [--seeds N] [--out FILE]``

Trains a small batch, large batches with several rates, the large-batch methods, ``auto``, and fixed batches of as
many steps; chooses rates on a validation split cut from the training set by one rule for all rows; prints accuracy and
its standard error, steps, samples and seconds, how much of the gap each row closes, and whether the bars are met.
``FILE`` holds one line of JSON for each run, and a benchmark that was interrupted goes on from it; the tables are
written beside it as ``.md`` and ``.csv``, the picture as ``.png``, and what ``auto`` chose, with the probes behind it,
in ``.auto``. ``--quick`` trains fewer images with fewer rates and seeds, in about two minutes: it shows that all works,
its figures prove nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.generalization_bars import bars, reference_lines
from tests.benchmarks.generalization_choice import Choices
from tests.benchmarks.generalization_jobs import FULL, QUICK, BenchJob, Scale, find_job
from tests.benchmarks.generalization_methods import ROWS, chosen_rows
from tests.benchmarks.generalization_report import (
    as_csv,
    average_table,
    bar_table,
    draw,
    gap_lines,
    gap_table,
    job_table,
    points,
)
from tests.benchmarks.generalization_runs import make_runs
from tests.benchmarks.generalization_store import Store
from tests.benchmarks.generalization_study import Study
from tests.benchmarks.generalization_summary import Cells, averages, cells, gaps
from tula_core.errors import InputError
from tula_core.home import state_folder


def report(study: Study, found: Cells, chosen: Sequence[str]) -> str:
    """Return everything that is to be said, in Markdown; ``chosen`` says what ``auto`` took, a line for each job."""
    scale, benches = study.scale, study.benches
    titles = {row.name: row.title for row in study.rows}
    parts = [
        f"# Accuracy at large batches, setting {scale.name}",
        f"Rates are chosen among {len(scale.factors)} on a fifth of the training set, then all of it is trained on; "
        "± is the standard error over seeds. A run that diverged for good counts as guessing.",
    ]
    if scale is not FULL:
        parts.append("This is the short setting: the bars are those of the full one, so met or missed proves nothing.")
    for bench in benches:
        parts += [f"## {_heading(study, bench)}", job_table(found, bench.name)]
    parts += ["## What auto chose, by its forecasts", _list(chosen)] if chosen else []
    references = reference_lines(benches, found)
    parts += ["## Small batch against its known figure", _list(references)] if references else []
    averaged = [bench for bench in benches if bench.averaged]
    parts += [f"## Mean of {len(averaged)} jobs", average_table(averages(found, averaged))] if averaged else []
    known = gaps(found)
    parts += (
        ["## Share of each gap that was closed", _list(gap_lines(known)), gap_table(known, titles)] if known else []
    )
    parts += ["## Bars", bar_table(bars(list(scale.jobs.values()), found))]
    return "\n\n".join(parts) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _heading(study: Study, bench: BenchJob) -> str:
    images = "all images" if bench.samples is None else f"{bench.samples} images"
    return (
        f"{bench.name}: {bench.workload}, {images}, batch {bench.small_batch} against {bench.large_batch}, "
        f"{bench.epochs} epochs, {study.seeds(bench)} seed(s)"
    )


def run(study: Study, store: Store, choices: Choices) -> None:
    """Make all runs that are missing, and let ``auto`` choose where it can, until there is nothing left to do."""
    while True:
        for bench, rate, row in study.unchosen():
            choices.make(bench, rate, row)
        missing = study.missing()
        if not missing:
            return
        print(f"{len(missing)} runs to make", file=sys.stderr, flush=True)
        make_runs(missing, store)


def write(study: Study, choices: Choices, out: Path) -> None:
    """Print the tables and write them and the picture beside the results."""
    found = cells(study)
    chosen = [choices.line(cell.bench, cell.rate, cell.row) for cell in found.values() if cell.row.names is None]
    text = report(study, found, chosen)
    print(text)
    out.with_suffix(".md").write_text(text)
    out.with_suffix(".csv").write_text(as_csv(found))
    panels = {bench.name: points(found, bench.name) for bench in study.benches}
    draw(panels, f"Test accuracy at equal epochs, setting {study.scale.name}", out.with_suffix(".png"))


def _study(asked: argparse.Namespace) -> tuple[Study, Store, Choices, Path]:
    scale: Scale = QUICK if asked.quick else FULL
    names = _listed(asked.jobs) or list(scale.jobs)
    if asked.seeds is not None and asked.seeds < 1:
        raise InputError(f"--seeds: {asked.seeds} is not allowed. Give a number of at least 1.")
    benches = [find_job(scale, name) for name in names]
    rows = chosen_rows(_listed(asked.methods))
    out: Path = asked.out or state_folder("benchmarks") / f"generalization-{scale.name}.jsonl"
    if out.suffix in (".md", ".csv", ".png"):
        raise InputError(f"--out: {str(out)!r} would be overwritten by a table or the picture. End it in .jsonl.")
    store = Store(out)
    choices = Choices(scale, out.with_suffix(".auto"))
    return Study(scale, benches, rows, store, choose=choices.known, seeds=asked.seeds), store, choices, out


def _listed(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing and print; 2 where the arguments are wrong, 130 where Ctrl-C ended it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer images, rates and seeds")
    parser.add_argument("--jobs", help=f"of {', '.join(FULL.jobs)}; all by default")
    parser.add_argument("--methods", help=f"of {', '.join(ROWS)}; all by default, the small batch always")
    parser.add_argument(
        "--seeds", type=int, help="of every row; by default ten for the digits and the true gap, else three"
    )
    parser.add_argument("--out", type=Path, help="file of results, .jsonl; taken up where it exists")
    try:
        study, store, choices, out = _study(parser.parse_args(arguments))
        run(study, store, choices)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what is done", file=sys.stderr)
        return 130
    write(study, choices, out)
    print(f"results: {out}; beside it the tables and the picture", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
