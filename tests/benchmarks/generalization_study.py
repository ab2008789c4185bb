"""Which runs are still to be made: rates first, then the seeds at the chosen rates, then the controls of those.

One rule for all rows whose rate is tuned: as many rates, a factor apart that is the same for all, around the recipe's
rate (times the square root of the batch's growth for fixed large batches and LAMB); the rate with the best mean
accuracy on the validation split after the last epoch is taken, the lower of two equal ones. A run that diverged counts
as nothing, also where training went on at a lower rate, for that is not the rate that was tried. The test set is not
looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tests.benchmarks.generalization_choice import Choice, Chooser
from tests.benchmarks.generalization_jobs import FINAL, TUNE, BenchJob, Scale, sizes
from tests.benchmarks.generalization_methods import (
    CHOSEN,
    CONTROL,
    GIVEN,
    REFERENCE,
    ROWS,
    SMALL,
    Row,
    control_batch,
    middle_rate,
)
from tests.benchmarks.generalization_store import Request, Result, Store

_FIRST_TUNING_SEED = 1000  # never one of those that are reported


class Study:
    """The benchmark's runs, made and to be made.

    Parameters
    ----------
    choose
        What ``auto`` trains with.
    seeds
        How often each row is trained; None for each job's own number.
    """

    def __init__(
        self,
        scale: Scale,
        benches: Sequence[BenchJob],
        rows: Sequence[Row],
        store: Store,
        *,
        choose: Chooser,
        seeds: int | None = None,
    ) -> None:
        self.scale, self.benches, self.rows = scale, benches, rows
        self._store, self._choose = store, choose
        self._seeds = seeds

    def seeds(self, bench: BenchJob) -> int:
        """Return how often each row of a job is trained."""
        return self._seeds or bench.seeds

    def missing(self) -> list[Request]:
        """Return the runs that can be made now and were not yet, equal ones once; none when all is done."""
        found: dict[str, Request] = {}
        for bench in self.benches:
            for row in self.rows:
                for request in self._requests(bench, row):
                    if self._store.get(request) is None:
                        found.setdefault(request.digest, request)
        return list(found.values())

    def _requests(self, bench: BenchJob, row: Row) -> Iterator[Request]:
        batch = self.batch(bench, row)
        if batch is None:
            return
        if row.rate != GIVEN:
            for rate in self.grid(bench, row, batch):
                yield from self._tuning(bench, row, batch, rate)
        yield from self.final_requests(bench, row)

    def _tuning(self, bench: BenchJob, row: Row, batch: int, rate: float) -> list[Request]:
        return [
            Request(
                self.scale, bench, row, TUNE, methods=row.names or (), batch=batch, rate=rate,
                seed=_FIRST_TUNING_SEED + number,
            )
            for number in range(bench.tuning_seeds)
        ]  # fmt: skip

    def unchosen(self) -> list[tuple[BenchJob, float, Row]]:
        """Return the jobs and rows that can choose now and have not yet, each with the small batch's rate."""
        rows = [row for row in self.rows if row.names is None]
        asked = [(bench, self.rate(bench, row), row) for bench in self.benches for row in rows]
        return [
            (bench, rate, row)
            for bench, rate, row in asked
            if rate is not None and self._choose(bench, rate, row) is None
        ]

    def final_requests(self, bench: BenchJob, row: Row) -> list[Request]:
        """Return the runs that are reported, none while their batch, rate or methods are not known."""
        batch, rate = self.batch(bench, row), self.rate(bench, row)
        if batch is None or rate is None:
            return []
        chosen = self._choose(bench, rate, row) if row.names is None else Choice(batch=batch, methods=row.names)
        if chosen is None:
            return []
        return [
            Request(self.scale, bench, row, FINAL, methods=chosen.methods, batch=batch, rate=rate, seed=seed)
            for seed in range(self.seeds(bench))
        ]

    def finals(self, bench: BenchJob, row: Row) -> list[Result]:
        """Return the results of a row by seed; none until all seeds are there."""
        found = [self._store.get(request) for request in self.final_requests(bench, row)]
        whole = [result for result in found if result is not None]
        return whole if len(whole) == len(found) else []

    def grid(self, bench: BenchJob, row: Row, batch: int) -> list[float]:
        """Return the rates that are tried, ascending."""
        middle = middle_rate(row, bench, batch)
        return [float(f"{middle * factor:.4g}") for factor in self.scale.factors]

    def batch(self, bench: BenchJob, row: Row) -> int | None:
        """Return a row's batch; None while it is not chosen, or the row whose steps it takes not done or diverged."""
        if row.batch == CHOSEN:
            rate = self._chosen_rate(bench, ROWS[REFERENCE])
            chosen = None if rate is None else self._choose(bench, rate, row)
            return None if chosen is None else chosen.batch
        if row.batch != CONTROL:
            return bench.small_batch if row.batch == SMALL else bench.large_batch
        assert row.control_of is not None
        steps = [result.steps for result in self.finals(bench, ROWS[row.control_of]) if result.accuracy is not None]
        if not steps:
            return None
        train_samples, _ = sizes(self.scale.name, bench.name, FINAL)
        return control_batch(bench, train_samples, statistics.fmean(steps))

    def rate(self, bench: BenchJob, row: Row) -> float | None:
        """Return the learning rate of a row's reported runs; None while it is not known."""
        return self._chosen_rate(bench, ROWS[REFERENCE] if row.rate == GIVEN else row)

    def _chosen_rate(self, bench: BenchJob, source: Row) -> float | None:
        batch = self.batch(bench, source)
        if batch is None:
            return None
        best: tuple[float, float] | None = None
        for rate in self.grid(bench, source, batch):
            results = [self._store.get(request) for request in self._tuning(bench, source, batch, rate)]
            if any(result is None for result in results):
                return None
            score = statistics.fmean(_score(result) for result in results if result is not None)
            if best is None or score > best[0]:
                best = (score, rate)
        return best[1] if best else None

    def at_edge(self, bench: BenchJob, row: Row) -> bool:
        """Return whether the rate that was chosen for the row is the lowest or the highest that was tried."""
        batch, rate = self.batch(bench, row), self.rate(bench, row)
        if batch is None or rate is None or row.rate == GIVEN:
            return False
        grid = self.grid(bench, row, batch)
        return len(grid) > 1 and rate in (grid[0], grid[-1])


def _score(result: Result) -> float:
    return 0.0 if result.accuracy is None or result.reductions else result.accuracy
