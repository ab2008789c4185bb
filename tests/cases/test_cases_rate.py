"""Finding a learning rate: a number with its interval, or a reason; never nothing in silence, and never one run's luck.

Elsewhere a rate is read off one smoothed curve of training losses, each of another batch, at its steepest place. It is
NaN where the curve ends in NaN, and another seed gives another rate. Here whole short runs are compared, each seed with
itself, on samples that none of them trained on.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from case_workloads import noted

from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step, summed_loss
from tula_core.job import Job
from tula_core.models.learning.rate_range import find_rate
from tula_core.profiling.learning_rate import measure_rate, settle_rate
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.records import LearningRateTest
from tula_core.workloads.load import load_workload

FORTY = np.geomspace(1e-5, 10.0, 40).tolist()
STEP_S = 50.0  # so long that nothing here ends for lack of time

Made = Callable[[str, int], Rig]
Search = Callable[[str, int], LearningRateTest]


def forty_losses(best: float, seed: int) -> list[float]:
    """Return 40 losses of one seed, least at ``best``, the last five NaN."""
    random = np.random.default_rng(seed)
    ratios = np.array(FORTY) / best
    losses = 2.3 * np.exp(-4 * ratios / (1 + ratios**2) * (1 + 0.05 * random.standard_normal(40)))
    return [*losses[:-5].tolist(), *[math.nan] * 5]


@pytest.fixture
def make_rig(tmp_path: Path, kept_signals: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Make a measuring worker for a workload of the cases and a job's seed, in this very process."""
    made: list[WorkerContext] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker's launcher does

    def make(name: str, seed: int) -> Rig:
        job = Job(workload=f"case_workloads:{name}", recipe={"range_test": True}, seed=seed)
        job = job.resolved(load_workload(job).recipe, None)
        made.append(WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path))
        task = {"job": job.to_dict(), "seconds": 1e6, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0}
        return Rig(made[-1], task)

    monkeypatch.setenv("CASES_LOG", str(tmp_path))
    yield make
    torch.set_num_threads(threads)
    for context in made:
        context.close()


def in_runs_of_32_steps(rig: Rig) -> tuple[Any, float]:
    """Return the sizes that were timed and the seconds to search in."""
    batch = rig.job.recipe.batch_size
    return [SimpleNamespace(local_batch=batch, estimate_s=STEP_S)], 22 * STEP_S * (34 + 200 / batch)


@pytest.fixture
def search(make_rig: Made) -> Search:
    """Search the rate of a workload of the cases with a job's seed."""

    def run(name: str, seed: int) -> LearningRateTest:
        rig = make_rig(name, seed)
        return measure_rate(rig, *in_runs_of_32_steps(rig))

    return run


def test_p27_a_curve_that_ends_in_nan_gives_a_finite_rate_from_its_valid_part() -> None:
    """Elsewhere the least of 40 losses, the last five NaN, is NaN, and training begins with None."""
    found = find_rate(FORTY, [forty_losses(0.05, seed) for seed in range(3)], [2.3] * 3)
    assert found.rate is not None and found.low is not None and found.high is not None
    assert found.low <= 0.05 <= found.high < FORTY[-5]
    assert found.rate == pytest.approx(0.05, rel=0.5)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e30])
def test_p27_a_curve_without_a_valid_part_is_refused_in_words(loss: float) -> None:
    """Elsewhere there is no rate and no reason, or the first of the rates is taken."""
    found = find_rate(FORTY, [[loss] * 40] * 3, [2.3] * 3)
    assert found.rate is None and "no rate from 1e-05 to 10 makes the loss" in found.refused


def test_p27_rates_at_which_training_diverges_end_no_search(search: Search) -> None:
    """Elsewhere the first loss that is NaN ends the search, or is its result."""
    found = search("steep", 0)
    diverged = [trial for trial in found.trials if any(math.isnan(loss) for loss in trial.losses)]
    assert diverged and found.found and math.isfinite(found.used)
    assert found.used < min(trial.learning_rate for trial in diverged)


def test_p28_five_seeds_give_one_rate_with_an_interval_that_holds_for_each() -> None:
    """Elsewhere the rate varies tenfold between runs, and each run says but one number."""
    rates = []
    for first in range(0, 25, 5):
        found = find_rate(FORTY, [forty_losses(0.05, seed) for seed in range(first, first + 5)], [2.3] * 5)
        assert found.low is not None and found.high is not None and found.rate is not None
        assert found.low <= 0.05 <= found.high
        rates.append(found.rate)
    assert max(rates) / min(rates) < 1.5


def test_p28_seeds_that_vary_tenfold_are_called_so() -> None:
    """Elsewhere nobody is told that the next seed would have given another rate."""
    curves = [forty_losses(best, seed) for seed, best in enumerate([0.02, 0.05, 0.05, 0.3, 0.6])]
    found = find_rate(FORTY, curves, [2.3] * 5)
    assert found.rate is None and "the 5 seeds disagree: the best rate may be anything from" in found.refused


def test_p28_jobs_of_other_seeds_find_rates_that_agree(search: Search) -> None:
    """Elsewhere one batch more or less moves the steepest place of the curve by a decade."""
    found = [search("frozen_part", seed) for seed in range(3)]
    used = [test.used for test in found if test.found]
    assert len(used) >= 2
    assert max(used) / min(used) < 5
    assert all(a.low <= b.high for a in found for b in found if a.low and b.high)  # their intervals meet


def test_what_judges_a_rate_is_no_part_of_the_evaluation(search: Search, tmp_path: Path) -> None:
    """Elsewhere rates are chosen on the data that later say how good the choice was."""
    found = search("frozen_part", 0)
    judged = [int(str(entry["size"])) for entry in noted(tmp_path) if not entry["training"]]
    runs = sum(math.isfinite(loss) for trial in found.trials for loss in trial.losses)
    assert found.held_out == 64 and sum(judged) == 64 * (runs + found.seeds)  # and once before training


def test_training_goes_on_after_a_search_as_without_one_bit_for_bit(make_rig: Made) -> None:
    """Elsewhere the finder's steps, random draws and running statistics are in the run that follows."""
    losses, weights = [], []
    for searching in (False, True):
        rig = make_rig("frozen_part", 0)
        trainee, feed, seen = rig.trainee, StepFeed(rig, rig.layout(32)), []
        for number in range(8):
            if searching and number == 4:
                settle_rate(rig, *in_runs_of_32_steps(rig))
            step = feed.next()
            found, _ = run_step(trainee, step, 0.05)  # with dropout, which draws
            seen.append(float(summed_loss(found, step.sizes)))
        losses.append(seen)
        weights.append({name: value.clone() for name, value in trainee.network.state_dict().items()})
    assert losses[0] == losses[1]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
