"""Batch norm, odd tails, and one axis for all: what the size of the data does to a step, and where results are drawn.

Elsewhere the one sample that an epoch leaves over ends the training in its norm, accumulation is claimed to be the same
training as a large batch, sorted data make the gradient look quiet, and metrics are dropped because each number of
devices counts steps in its own way. Here a plan knows every odd step beforehand and says so, small tails are shared,
the order of samples is always shuffled, and everything is drawn over samples seen.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from case_helpers import attempt, case_plan, find_support, in_world
from case_workloads import frozen_part, odd_257, shuffled, sorted_by_class
from factories import make_facts, make_job, make_profile, make_step
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tula_core.engine.batches import BatchStream
from tula_core.engine.context import WorkerContext
from tula_core.engine.shares import Layout, smallest_micro_batch, step_sizes
from tula_core.job import Job
from tula_core.models.predictor import fit
from tula_core.profiling.noise import PilotNoise
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.records import Plan
from tula_core.search.api import make_plan
from tula_core.training.run import run_attempt
from tula_core.workloads import Workload
from tula_core.workloads.describe import describe

ODD_BATCHES = (64, 128, 256)
Runs = Mapping[int, Mapping[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("norm")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home / "home")
        yield home


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """Epochs that leave one sample, with a norm that cannot use one, on one and two ranks."""
    return {
        ranks: in_world(
            folder / f"world-{ranks}",
            ranks,
            "runs",
            runs={
                str(batch): {"workload": "odd_257", "local_batch": batch // ranks, "mitigation": []}
                for batch in ODD_BATCHES
            },
        )
        for ranks in (1, 2)
    }


def plan_of(batch: int = 64, **facts: Any) -> Plan:
    """Return a plan from a synthetic profile with some facts changed."""
    recipe = make_job().recipe.model_copy(update={"batch_size": batch})
    job = make_job(recipe=recipe, target=None, cluster={"processes_per_node": 2})
    steps = tuple(make_step(1, processes, 16) for processes in (1, 2))
    profile = make_profile(facts=make_facts(**facts), steps=steps)
    return make_plan(profile, job, fit(profile, job), mitigation=("linear-lr", "warmup"))


# P36


@pytest.mark.parametrize("made", [sorted_by_class, shuffled], ids=["sorted", "shuffled"])
def test_every_batch_is_drawn_from_the_whole_data_set(made: Any) -> None:
    """Elsewhere a loader sorted by class hands out one class at a time."""
    data = made().train_set()
    stream = BatchStream(data, samples=600, layout=Layout(processes=1, local_batch=32), rank=0, seed=0)
    for step in stream.from_samples(0):
        assert {int(label) for label in step.micro_batches[0][1]} == {0, 1, 2}
        if step.ends_epoch:
            break


def test_data_sorted_by_class_have_the_noise_of_shuffled_data(tmp_path: Path, kept_signals: None) -> None:
    """Elsewhere the noise is far too small, because samples of one class are taken for independent ones."""
    traces = {}
    for name in ("sorted_by_class", "shuffled"):
        context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
        request = Job(workload=f"case_workloads:{name}")
        job = request.resolved(shuffled().recipe, None)
        task = {"job": job.to_dict(), "seconds": 60, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0}
        rig = Rig(context, task)
        noise = PilotNoise(rig, rig.trainee, rig.layout(32), steps=32)
        step = StepFeed(rig, rig.layout(32)).next()
        for _ in range(16):
            observe = noise.observer(step)
            assert observe is not None
            observe()
        found = noise.result()
        assert found is not None
        traces[name] = found.trace_covariance
        context.close()
    assert traces["sorted_by_class"] == pytest.approx(traces["shuffled"], rel=0.35)


# P37


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("batch", ODD_BATCHES)
def test_a_tail_of_one_sample_ends_no_training(runs: Runs, ranks: int, batch: int) -> None:
    """Elsewhere the last batch of an epoch holds one sample, and batch norm refuses it."""
    found = runs[ranks][str(batch)]
    assert found["error"] is None
    assert found["result"]["samples"] == 257 and found["result"]["steps"] == -(-257 // batch)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rest_that_does_not_go_round_ends_no_training(folder: Path, ranks: int) -> None:
    """Elsewhere a run taken up with more processes has one sample or none for some of them, and dies of it."""
    own = {"workload": "odd_258", "checkpoint": str(folder / f"rest-{ranks}.pt"), "mitigation": []}
    first = {**own, "local_batch": 128, "batch": 128, "stop_at": 256}
    stopped = in_world(folder / f"stopped-{ranks}", 1, "runs", runs={"one": first})
    assert stopped["one"]["error"] == "stopped by signal 15 after 256 samples"
    again = {**own, "local_batch": 32, "resume": True}
    found = in_world(folder / f"rest-{ranks}", ranks, "runs", runs={"again": again})["again"]
    assert found["error"] is None and found["result"]["samples"] == 258


@pytest.mark.parametrize("batch", ODD_BATCHES)
def test_the_plan_says_that_a_tail_is_shared(batch: int) -> None:
    """What is done with the odd sample is told before, not found out."""
    plan = plan_of(batch, train_samples=257)
    [note] = [text for text in plan.assumptions if "257 training samples leave a last step" in text]
    assert str(batch) in note and "no sample is left out" in note


@given(samples=st.integers(2, 700), processes=st.integers(1, 4), local=st.integers(1, 40), parts=st.integers(1, 3))
def test_no_process_gets_one_sample_where_the_plan_does_not_say_so(
    samples: int, processes: int, local: int, parts: int
) -> None:
    """From four samples per process on nobody is ever left with one."""
    layout = Layout(processes=processes, local_batch=local, accumulation=parts)
    if samples >= layout.global_batch and local >= 3 and local * parts >= 4:
        assert smallest_micro_batch(samples, layout) >= 2
        assert sum(step_sizes(samples, layout)) == samples


@pytest.mark.parametrize(("smallest", "infeasible"), [(1, set()), (2, {1, 2})])
def test_a_layout_that_leaves_one_sample_is_infeasible_where_one_cannot_be_trained_on(
    smallest: int, infeasible: set[int]
) -> None:
    """Where a single sample cannot be avoided the plan names the rows; they never fail in the run."""
    plan = plan_of(8, train_samples=257, smallest_batch=smallest)
    because = {row.candidate.local_batch: row.infeasible_because for row in plan.table if row.candidate.processes == 1}
    told = {local for local, text in because.items() if text and "cannot train on fewer than 2 at once" in text}
    assert told == infeasible & set(because)


@pytest.mark.parametrize(("made", "expected"), [(odd_257, 2), (frozen_part, 1)])
def test_whether_one_sample_can_be_trained_on_is_tried(made: Any, expected: int) -> None:
    """A norm over pixels can use one image, a norm over samples cannot; nobody has to say which."""
    workload: Workload = made()
    assert describe(workload, Job(workload=f"case_workloads:{made.__name__}")).smallest_batch == expected


# P39


def test_accumulation_is_not_the_same_training_for_batch_norm() -> None:
    """The statistics of eight micro-batches are not those of their whole."""
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) + 1
    whole, parts = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    whole(inputs)
    for part in inputs.split(8):
        parts(part)
    assert not torch.allclose(whole.running_mean, parts.running_mean, rtol=0.5)


def test_the_plan_says_so_and_offers_a_remedy() -> None:
    """Elsewhere accumulation is said to train as the large batch does."""
    plan, without = plan_of(has_batch_norm=True), plan_of(has_batch_norm=False)
    [note] = [text for text in plan.assumptions if text.startswith("Batch norm takes its statistics")]
    assert "accumulation does not make them so" in note and "group or layer norm" in note
    assert not any("Batch norm" in text for text in without.assumptions)


@pytest.mark.parametrize(("norm", "warned"), [(True, True), (False, False)])
def test_a_choice_that_accumulates_warns_of_its_norm(norm: bool, warned: bool) -> None:
    """A limit that forces accumulation changes the training of a network with batch norm."""
    job = make_job(constraints={"max_local_batch": 8}, target=None)
    profile = make_profile(facts=make_facts(has_batch_norm=norm), steps=(make_step(1, 1, 8), make_step(1, 2, 8)))
    plan = make_plan(profile, job, fit(profile, job), mitigation=("linear-lr", "warmup"))
    assert plan.choice is not None and plan.choice.candidate.accumulation > 1
    assert ("Beware: batch norm takes its statistics from micro-batches of 8" in plan.reason) is warned


# P42


def test_no_figure_has_two_values_at_one_place_after_a_divergence(folder: Path) -> None:
    """Elsewhere the points of the branch that was given up stay among those that took its place."""
    points: list[tuple[int, str]] = []
    outcome, error = run_attempt(
        attempt(case_plan("steep", (1, 96, 1)), folder / "steep"),
        lambda event: None,
        lambda samples, figures: points.extend((samples, name) for name in figures),
    )
    assert error is None and outcome.status == "FINISHED"
    assert any(".again_" in name for _, name in points)
    assert len(points) == len(set(points))
    for figure in {name for _, name in points}:
        steps = [samples for samples, name in points if name == figure]
        assert steps == sorted(steps)


def test_evaluations_lie_on_one_axis_on_any_number_of_ranks(folder: Path) -> None:
    """Elsewhere every hundredth update is another moment on four ranks, and points are dropped as out of order."""
    points: list[tuple[int, Mapping[str, float]]] = []
    outcome, error = run_attempt(
        attempt(case_plan("plain_240", (3, 16, 1)), folder / "axis"),
        lambda event: None,
        lambda samples, figures: points.append((samples, figures)),
    )
    assert error is None
    samples = [at for at, _ in points]
    assert samples == sorted(samples) and set(samples) == {48 * step for step in range(1, 11)}  # as on one rank
    assert [at for at, figures in points if "accuracy" in figures] == [240, 480]
    assert [(point.samples, point.epochs) for point in outcome.curve] == [(240, 1.0), (480, 2.0)]
