"""What the runs say: means with standard errors, differences paired over seeds, recoveries, and the bars.

Every accuracy is in per cent, every difference in points. A run that diverged for good counts as no better than
guessing among the classes, so that a row which sometimes diverges is not flattered by its other seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.generalization_jobs import BenchJob
from tests.benchmarks.generalization_methods import BEST_FIXED, PLAIN, REFERENCE, Row
from tests.benchmarks.generalization_store import Result
from tests.benchmarks.generalization_study import Study

GUESSING_PCT = 10.0  # all data sets here have ten classes of about equal size


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over seeds and its standard error, None of a single seed."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.error is None else f"{self.mean:.2f} ± {self.error:.2f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A row of the table in one job."""

    bench: BenchJob
    row: Row
    batch: int
    rate: float
    at_edge: bool
    by_seed: tuple[float, ...]
    accuracy: Estimate
    to_small: Estimate | None
    train_accuracy: Estimate
    steps: float
    samples: float
    seconds: float | None
    diverged: int
    reduced: int


Cells = dict[tuple[str, str], Cell]


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean and its standard error, s/sqrt(n).

    >>> print(estimate([1.0, 3.0]))
    2.00 ± 1.00
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(mean=statistics.fmean(values), error=error)


def paired(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the mean difference of runs of the same seeds, and its standard error."""
    return estimate([value - other for value, other in zip(values, others, strict=True)])


def recovery(accuracy: float, base: float, small: float) -> float | None:
    """Return the share of the gap from ``base`` to ``small`` that is closed; None where there is no gap.

    >>> recovery(86.0, 84.0, 88.0), recovery(86.0, 88.0, 88.0)
    (0.5, None)
    """
    return (accuracy - base) / (small - base) if small > base else None


def cells(study: Study) -> Cells:
    """Return the table's cells by names of job and row; those that are not done are left out."""
    found: Cells = {}
    for bench in study.benches:
        for row in study.rows:
            results = study.finals(bench, row)
            if results:
                small = found.get((bench.name, REFERENCE))
                found[bench.name, row.name] = _cell(study, bench, row, results, small)
    return found


def _cell(study: Study, bench: BenchJob, row: Row, results: Sequence[Result], small: Cell | None) -> Cell:
    batch, rate = study.batch(bench, row), study.rate(bench, row)
    assert batch is not None and rate is not None
    by_seed = tuple(_pct(result.accuracy) for result in results)
    seconds = [result.seconds for result in results if result.seconds is not None]
    return Cell(
        bench=bench,
        row=row,
        batch=batch,
        rate=rate,
        at_edge=study.at_edge(bench, row),
        by_seed=by_seed,
        accuracy=estimate(by_seed),
        to_small=paired(by_seed, small.by_seed) if small is not None else None,
        train_accuracy=estimate([_pct(result.train_accuracy) for result in results]),
        steps=statistics.fmean(result.steps for result in results),
        samples=statistics.fmean(result.samples for result in results),
        seconds=statistics.fmean(seconds) if seconds else None,
        diverged=sum(result.accuracy is None for result in results),
        reduced=sum(result.reductions > 0 for result in results),
    )


def _pct(share: float | None) -> float:
    return GUESSING_PCT if share is None else 100.0 * share


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """What a large batch lacks to the small one in a job, in points, paired over seeds.

    ``closed`` is the share of it that each other row closed, None where there is no gap.
    """

    bench: BenchJob
    base: Row
    points: Estimate
    closed: dict[str, float | None]


def gaps(found: Cells) -> list[Gap]:
    """Return the gaps from the plain and from the best tuned large batch in each job, as far as these are done."""
    made = []
    for (job, name), base in found.items():
        small = found.get((job, REFERENCE))
        if small is None or name not in (PLAIN, BEST_FIXED):
            continue
        others = [cell for (own, _), cell in found.items() if own == job and cell is not base and cell is not small]
        closed = {
            cell.row.name: recovery(cell.accuracy.mean, base.accuracy.mean, small.accuracy.mean) for cell in others
        }
        made.append(Gap(bench=base.bench, base=base.row, points=paired(small.by_seed, base.by_seed), closed=closed))
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """A row's mean over jobs: accuracy in per cent, differences in points; None where the other row is not done."""

    row: Row
    accuracy: float
    minus_small: float | None
    minus_plain: float | None
    minus_tuned: float | None
    steps_share: float | None


def averages(found: Cells, benches: Sequence[BenchJob]) -> list[Average]:
    """Return the means over jobs of the rows that are done in all of them."""
    means = {}
    for row in {cell.row.name: cell.row for cell in found.values()}.values():
        own = [found[bench.name, row.name] for bench in benches if (bench.name, row.name) in found]
        if own and len(own) == len(benches):
            means[row.name] = (row, statistics.fmean(cell.accuracy.mean for cell in own))

    def minus(mean: float, other: str) -> float | None:
        return mean - means[other][1] if other in means else None

    return [
        Average(
            row=row,
            accuracy=mean,
            minus_small=minus(mean, REFERENCE),
            minus_plain=minus(mean, PLAIN),
            minus_tuned=minus(mean, BEST_FIXED),
            steps_share=_steps_share(found, benches, name),
        )
        for name, (row, mean) in means.items()
    ]


def _steps_share(found: Cells, benches: Sequence[BenchJob], name: str) -> float | None:
    """Return the mean over jobs of a row's steps as a share of the small batch's."""
    pairs = [(found[bench.name, name], found.get((bench.name, REFERENCE))) for bench in benches]
    shares = [cell.steps / small.steps for cell, small in pairs if small is not None]
    return statistics.fmean(shares) if len(shares) == len(pairs) else None
