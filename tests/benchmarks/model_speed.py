"""How fast the models answer: the fit of one job, and a forecast of many candidates.

``python -m tests.benchmarks.model_speed [--candidates 100000]`` prints the seconds of each beside what they should stay
under on two cores: the fit of all models, the step-time model's forecast, every quantity with its interval and verdict
as columns, and rows made of these, one object each; then two plans, of a cluster of 64 nodes with 8 processes each and
three precisions, without methods and with those of ``auto``. Seconds of the processor, of all threads together, stand
beside those of the clock, because on a busy machine only they say what the work costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from typing import TypeVar

from tests.factories import make_facts, make_job, make_profile
from tula_core.job import Cluster, Recipe
from tula_core.mitigations import effects_of, packages_of
from tula_core.models.predictor import fit
from tula_core.models.step.time import Shapes
from tula_core.records import Candidate, Plan
from tula_core.search.api import make_plan

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


def wide_plan(mitigation: str) -> Plan:
    """Plan for a cluster of 64 nodes with 8 processes each, batches up to 32,768 and three precisions."""
    job = make_job(
        mitigation=mitigation,
        cluster=Cluster(nodes=64, processes_per_node=8, price_per_node_hour=3.0),
        precisions=["fp32", "bf16", "fp16"],
        recipe=Recipe(**{**Recipe().model_dump(), "batch_size": 512, "epochs": 20}),
        constraints={"memory": "2GiB", "max_local_batch": 1024},
    )
    profile, packages = make_profile(facts=make_facts(train_samples=1_281_167)), packages_of(job)
    return make_plan(profile, job, fit(profile, job, effects=effects_of(packages)), mitigation=packages)


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
    wide_plan("none")  # what is imported at the first plan is none of its work
    plans = [timed(partial(wide_plan, names), 1) for names in ("none", "auto")]
    print(f"{len(profile.steps)} timed configurations, {len(asked)} candidates, the fastest of {options.repeats}")
    for name, (clock, processor), limit in (
        ("fit", fit_s, f"limit {FIT_LIMIT_S:g}"),
        ("step-time", step_s, f"limit {FORECAST_LIMIT_S:g}"),
        ("columns", columns_s, f"limit {FORECAST_LIMIT_S:g}"),
        ("rows", rows_s, "no limit"),
        *(
            ("plan", seconds, f"{plan.facts['evaluated']} rows of {plan.facts['grid']} candidates, no limit")
            for plan, *seconds in plans
        ),
    ):
        print(f"  {name:10} {clock:8.3f} s, {processor:8.3f} s of the processor  ({limit})")


if __name__ == "__main__":
    main()
