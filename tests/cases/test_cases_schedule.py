"""Learning rate, schedule, accumulation: all follow from samples seen and the global batch, and from nothing else.

Elsewhere a rate ends at a fraction 1/n of the run on n devices, is scaled by the number of workers although the batch
is the same, moves with micro-batches or with updates that were skipped, and the last partial window of an accumulation
is thrown away. Here the rate is a function of the samples that counted, the rule's factor one of the global batch, and
a run says both when it begins.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_helpers import attempt, case_plan, find_support, in_world

from tula_core import mitigations
from tula_core.errors import StoppedError
from tula_core.job import Job, Recipe
from tula_core.mitigations.rates.plan import LearningRate
from tula_core.progress import Event
from tula_core.records import Outcome
from tula_core.training.run import run_attempt

RULE = ("linear-lr", "warmup")
Runs = Mapping[int, Mapping[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("schedule")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home / "home")
        yield home


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """What one, two and three ranks said of the same jobs: by number of ranks, then by name of the run."""
    found = {}
    for ranks in (1, 2, 3):
        asked = {"same batch": {"workload": "plain_240", "local_batch": 48 // ranks}}
        if ranks < 3:
            asked |= {
                "micro-batches": {"workload": "small_64", "local_batch": 4 // ranks, "accumulation": 4},
                "partial window": {"workload": f"windows_{40 * ranks}", "local_batch": 4, "accumulation": 4},
                "overflow": {"workload": "overflowing", "local_batch": 16 // ranks},
            }
        found[ranks] = in_world(folder / f"world-{ranks}", ranks, "runs", runs=asked)
    return found


def said(runs: Runs, ranks: int, name: str, kind: str = "progress") -> list[Mapping[str, Any]]:
    found = runs[ranks][name]
    assert found["error"] is None
    return [event for event in found["events"] if event["kind"] == kind]


# P21


@pytest.mark.parametrize("share", np.linspace(0, 1, 9))
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_at_equal_shares_of_the_samples_the_rate_is_the_same_on_any_number_of_devices(
    processes: int, share: float
) -> None:
    """Elsewhere a cosine over 10,000 steps is at its end after 2,500 on four devices."""
    batch, steps = 32, 10_000
    recipe = Recipe(learning_rate=0.1, batch_size=batch, schedule="cosine")
    rate = LearningRate.plan(recipe, batch * processes, (), steps * batch)
    assert rate.at(round(share * steps * batch)) == pytest.approx(0.05 * (1 + math.cos(math.pi * share)), abs=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
def test_runs_on_more_ranks_have_the_rate_of_one_at_every_sample(runs: Runs, ranks: int) -> None:
    """The same of real runs: every step of every epoch, warm-up and cosine."""
    course = {n: [(e["samples"], e["learning_rate"]) for e in said(runs, n, "same batch")] for n in (1, ranks)}
    assert course[ranks] == course[1] and len(course[1]) == 10
    assert course[1][-1][1] < 0.3 * max(rate for _, rate in course[1])


# P22


@pytest.mark.parametrize(("optimizer", "factor"), [("sgd", 4.0), ("adam", 2.0), ("adamw", 2.0)])
def test_the_rule_is_that_of_the_optimizers_family(optimizer: str, factor: float) -> None:
    """Linear for SGD, the square root for Adam and its relatives, at 2 x 512 samples for a base of 256."""
    job = Job(workload="digits-cnn", recipe={"optimizer": optimizer, "learning_rate": 0.1, "batch_size": 256})
    rate = LearningRate.plan(job.recipe, 2 * 512, mitigations.resolve(job), 100_000)
    assert (rate.factor, rate.peak) == (factor, pytest.approx(0.1 * factor))


def test_the_run_says_its_batch_its_rule_and_its_rate(folder: Path) -> None:
    """Elsewhere nobody can tell whether the rate must be changed with the number of devices."""
    messages: list[str] = []
    outcome, error = run_attempt(
        attempt(case_plan("large_1024", (2, 512, 1)), folder / "said"),
        lambda event: messages.append(event.message),
        lambda samples, figures: None,
    )
    assert error is None and outcome.actual["steps"] == 1
    words = "global batch 1024: learning rate 0.1 at batch 256 -> 0.4 (linear rule, factor 4, warm-up over"
    assert any(message.startswith(words) for message in messages)


# P23


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_fixed_batch_keeps_its_rate_on_any_number_of_workers(workers: int) -> None:
    """Elsewhere the rate is multiplied by the workers although the batch is the same."""
    recipe = Recipe(learning_rate=0.1, batch_size=256)
    assert LearningRate.plan(recipe, workers * (256 // workers), RULE, 10_000).peak == 0.1


def test_real_workers_leave_the_rate_of_a_fixed_batch_alone(runs: Runs) -> None:
    """The same of real runs, by what they said as they began."""
    begun = [said(runs, ranks, "same batch", "ready")[0] for ranks in (1, 2, 3)]
    assert {(event["peak_learning_rate"], event["rate"]["factor"]) for event in begun} == {(0.2, 2.0)}


# P24


def test_a_larger_batch_warms_up_unless_told_otherwise() -> None:
    """Elsewhere six times the rate is there from the first step."""
    recipe = Recipe(learning_rate=0.02, batch_size=16)
    job = Job(workload="digits-cnn", recipe=recipe)
    rate = LearningRate.plan(recipe, 96, mitigations.resolve(job), 10_000)
    assert rate.peak == pytest.approx(0.12) and rate.at(0) == 0.02 and rate.at(500) < 0.08


def test_a_rate_that_diverges_is_lowered_and_both_rates_are_said(folder: Path) -> None:
    """Elsewhere the loss is NaN after a few steps and training goes on with it."""
    warnings: list[str] = []
    outcome, error = run_attempt(
        attempt(case_plan("steep", (1, 96, 1)), folder / "steep"),
        lambda event: warnings.append(event.message) if event.level == "warning" else None,
        lambda samples, figures: None,
    )
    assert error is None and outcome.status == "FINISHED"
    assert len(warnings) == outcome.learning_rate_reductions == 1
    assert "learning rate lowered from 0.12 to 0.06" in warnings[0]
    assert all(math.isfinite(point.train_loss) for point in outcome.curve)


# P25


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_schedule_moves_once_for_each_update(runs: Runs, ranks: int) -> None:
    """Elsewhere the scheduler moves with every micro-batch."""
    steps = said(runs, ranks, "micro-batches")
    assert [step["steps"] for step in steps] == [1, 2, 3, 4]  # of 16 micro-batches
    assert [step["learning_rate"] for step in steps] == pytest.approx([0.1, 0.075, 0.05, 0.025])


# P26


@pytest.mark.parametrize("ranks", [1, 2])
def test_updates_that_were_skipped_move_neither_schedule_nor_count(runs: Runs, ranks: int) -> None:
    """Elsewhere the schedule and the counter go on while the loss scaler skips."""
    steps = said(runs, ranks, "overflow")
    assert [step["steps"] for step in steps] == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    rates = [step["learning_rate"] for step in steps]
    assert rates[:4] == [0.01] * 4 and rates[4] == pytest.approx(0.01 * 0.9)
    assert runs[ranks]["overflow"]["result"]["steps"] == 7


def test_updates_that_were_skipped_leave_the_noise_statistics_alone(folder: Path) -> None:
    """Elsewhere infinite gradients enter the running averages and stay in them."""
    found = in_world(folder / "noise", 2, "noise_under_overflow")
    assert found["steps"] - 3 == found["updates"] == found["estimates"]
    assert math.isfinite(found["trace"])


# P29


class Interrupt:
    """Ends an attempt once it has seen some samples."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.messages: list[str] = []

    def __call__(self, event: Event) -> None:
        self.messages.append(event.message)

    def point(self, samples: int, figures: Mapping[str, float]) -> None:
        if samples >= self.samples:
            raise StoppedError("a machine is gone", 15)


@pytest.fixture(scope="module")
def shrunk(folder: Path) -> tuple[Outcome, list[str], Path]:
    """A run on three ranks with a batch of 66 that goes on with two of them, at a batch of 64."""
    plan = case_plan("plain", (3, 22, 1), (2, 32, 1), batch_size=64, epochs=3)
    home = folder / "shrunk"
    first = Interrupt(66)
    stopped, error = run_attempt(attempt(plan, home), first, first.point)
    assert stopped.status == "KILLED" and isinstance(error, StoppedError)
    messages: list[str] = []
    outcome, error = run_attempt(
        attempt(plan, home, row=1, number=2, resume=True),
        lambda event: messages.append(event.message),
        lambda samples, figures: None,
    )
    assert error is None
    return outcome, messages, home


def test_a_world_that_shrinks_states_its_new_batch_and_rate(shrunk: tuple[Outcome, list[str], Path]) -> None:
    """Elsewhere nobody knows what became of batch and rate when a worker was lost."""
    outcome, messages, _ = shrunk
    assert any(message.startswith("resumed at") for message in messages)
    assert any(message.startswith("global batch 64: learning rate 0.1 at batch 64 -> 0.1") for message in messages)
    assert outcome.status == "FINISHED" and outcome.actual["epochs"] == 3.0
    assert [point.samples for point in outcome.curve] == [1000, 2000, 3000]


def test_what_no_row_forecast_is_held_against_none(shrunk: tuple[Outcome, list[str], Path]) -> None:
    """A run on two layouts must not teach that either forecast of the whole was wrong."""
    outcome, _, home = shrunk
    assert outcome.error_pct("time_to_train_s") is None and outcome.error_pct("step_time_s") is not None
    assert outcome.predicted["epochs"] is outcome.predicted["cost_usd"] is None
    hours, seconds = outcome.actual["node_hours"], outcome.actual["time_to_train_s"]
    assert hours and seconds and hours == pytest.approx(seconds / 3600)
    assert (home / "attempt-2").is_dir()


@pytest.mark.parametrize(("batch", "workers"), [(64, 3), (64, 4), (100, 8), (7, 2)])
def test_an_uneven_share_gives_the_rate_of_the_batch_it_makes(batch: int, workers: int) -> None:
    """What a batch is rounded to is what its rate is derived from."""
    made = workers * (batch // workers)
    rate = LearningRate.plan(Recipe(learning_rate=0.1, batch_size=batch), made, RULE, 10_000)
    assert rate.peak == pytest.approx(0.1 * made / batch)


# P30


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_partial_window_is_an_update_of_its_own(runs: Runs, ranks: int) -> None:
    """Elsewhere the gradients of ten micro-batches, four to an update, give two updates and are then lost."""
    steps = said(runs, ranks, "partial window")
    assert [step["samples"] for step in steps] == [16 * ranks, 32 * ranks, 40 * ranks]
    result = runs[ranks]["partial window"]["result"]
    assert (result["steps"], result["samples"]) == (3, 40 * ranks)
