"""How fast the models answer: the fit of one job, and a forecast of many candidates.

``python -m tests.benchmarks.model_speed [--candidates 100000]`` prints the seconds of each beside what they should stay
under on two cores: the fit of all models, the step-time model's forecast, every quantity with its interval and verdict
as columns, and rows made of these, one object each. Seconds of the processor stand beside those of the clock, because
on a busy machine only they say what the work costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import islice, product
from typing import TypeVar

from tests.factories import make_facts, make_job, make_profile
from tula_core.models.predictor import fit
from tula_core.models.step.time import Shapes
from tula_core.records import Candidate

FIT_LIMIT_S = 2.0
FORECAST_LIMIT_S = 1.0

T = TypeVar("T")


def candidates(count: int) -> list[Candidate]:
    """Return as many different configurations, of one node and more."""
    batches = ((n, p, b, a) for b, (n, p, a) in product(range(1, 4097), product(range(1, 65), (1, 2, 4, 8), (1, 2))))
    names = ("nodes", "processes_per_node", "local_batch", "accumulation")
    return [Candidate(**dict(zip(names, each, strict=True))) for each in islice(batches, count)]


def timed(action: Callable[[], T], repeats: int) -> tuple[T, float, float]:
    """Return what an action gives, and the least seconds it took by the clock and by the processor."""
    clock = processor = float("inf")
    for _ in range(repeats):
        began, busy = time.perf_counter(), time.process_time()
        found = action()
        clock, processor = min(clock, time.perf_counter() - began), min(processor, time.process_time() - busy)
    return found, clock, processor


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    options = parser.parse_args(arguments)
    profile, job = make_profile(facts=make_facts(train_samples=10**9)), make_job()
    predictor, *fit_s = timed(lambda: fit(profile, job), options.repeats)
    asked = candidates(options.candidates)
    shapes = Shapes.of(asked)
    _, *step_s = timed(lambda: predictor._models.step.predict(shapes), options.repeats)
    columns, *columns_s = timed(lambda: predictor.forecast_columns(asked), options.repeats)
    _, *rows_s = timed(columns.rows, 1)
    print(f"{len(profile.steps)} timed configurations, {len(asked)} candidates, the fastest of {options.repeats}")
    for name, (clock, processor), limit in (
        ("fit", fit_s, f"limit {FIT_LIMIT_S:g}"),
        ("step-time", step_s, f"limit {FORECAST_LIMIT_S:g}"),
        ("columns", columns_s, f"limit {FORECAST_LIMIT_S:g}"),
        ("rows", rows_s, "no limit"),
    ):
        print(f"  {name:10} {clock:8.3f} s, {processor:8.3f} s of the processor  ({limit})")


if __name__ == "__main__":
    main()
