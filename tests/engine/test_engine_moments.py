"""Moments of a step's gradient for methods that follow the noise: unbiased, and no larger after many steps."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_workloads import workload

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch
from tula_core.engine.loop import run_step
from tula_core.engine.moments import StepMoments, moments_of
from tula_core.mitigations.compose import Methods
from tula_core.mitigations.method import GradientMoments
from tula_core.mitigations.rates.adascale import gain


def test_the_estimates_are_unbiased_for_gaussian_gradients() -> None:
    """Small groups are part of the whole step: the estimates do not need them to be independent."""
    generator = np.random.default_rng(0)
    signal, small, large, size = np.full(20, 0.3), 4, 32, 4000
    found = []
    for _ in range(size):
        gradients = signal + generator.standard_normal((large, 20))
        part, whole = gradients[:small].mean(axis=0), gradients.mean(axis=0)
        moments = moments_of(float(part @ part), float(whole @ whole), small, large)
        assert moments is not None
        found.append((moments.squared_gradient, moments.trace_covariance))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(size)
    assert abs(mean[0] - float(signal @ signal)) < 4 * error[0]
    assert abs(mean[1] - 20.0) < 4 * error[1]
    assert moments_of(float("nan"), 1.0, 4, 32) is None


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_reading_keeps_no_gradient_whatever_the_number_of_steps(tmp_path: Path, accumulation: int) -> None:
    """Elsewhere every measured gradient is kept, and memory grows with the steps."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    made = workload()
    trainee = assemble(made, made.recipe, context, seed=0)
    moments = StepMoments(trainee, every=1)
    layout = Layout(processes=1, local_batch=16 // accumulation, accumulation=accumulation)
    stream = BatchStream(made.train_set(), samples=203, layout=layout, rank=0, seed=0)
    held = []
    for count, step in enumerate(stream.from_samples(0), start=1):
        before = [parameter.detach().clone() for parameter in trainee.network.parameters()]
        run_step(trainee, step, 0.0, moments=moments.next(step))
        assert all(torch.equal(old, new) for old, new in zip(before, trainee.network.parameters(), strict=True))
        held.append(sum(value.numel() for value in vars(moments).values() if isinstance(value, torch.Tensor)))
        if count == 60:
            break
    context.close()
    gradient = sum(parameter.numel() for parameter in trainee.network.parameters())
    assert max(held) < gradient and held[-1] == held[2]


@pytest.mark.parametrize("processes", [2, 3])
def test_a_measured_step_moves_the_weights_as_any_other(tmp_path: Path, processes: int) -> None:
    """With three processes even the order of a sum would show."""
    task = WorkerTask(
        entry="engine_entries:measured_steps",
        payload={"every": [0, 1, 3]},
        folder=tmp_path / "task",
        processes_per_node=processes,
        timeout_s=120,
    )
    found = launch(task, lambda event: None).unwrap()
    assert [found[every]["measured"] for every in ("0", "1", "3")] == [0, 7, 3]
    assert found["0"]["weights"] == found["1"]["weights"] == found["3"]["weights"]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_gain_is_the_same_whether_or_not_the_loss_is_divided(tmp_path: Path, accumulation: int) -> None:
    """Elsewhere a loss that is divided by the number of micro-batches gives another gain (P32)."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    made = workload()
    gains = []
    for divisor in (1.0, 4.0):
        scaled = dataclasses.replace(made, loss=lambda output, target, d=divisor: made.loss(output, target) / d)
        trainee = assemble(scaled, scaled.recipe, context, seed=0)
        meter = StepMoments(trainee, every=1)
        layout = Layout(processes=1, local_batch=64 // accumulation, accumulation=accumulation)
        steps = BatchStream(made.train_set(), samples=203, layout=layout, rank=0, seed=0).from_samples(0)
        heard = Heard()
        for step in itertools.islice(steps, 3):
            run_step(dataclasses.replace(trainee, methods=heard), step, 0.0, moments=meter.next(step))
        sqr, var = np.mean([(m.squared_gradient, m.trace_covariance) for m in heard.moments], axis=0)
        assert var > 0  # else the gain is 1 whatever is done
        gains.append(gain(float(sqr), float(var), reference_batch=16, scale=4.0))
    context.close()
    assert 1.0 < gains[0] < 4.0
    assert gains[1] == pytest.approx(gains[0], rel=1e-6)


class Heard(Methods):
    """Takes the place of the methods of a run and keeps what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[GradientMoments] = []

    def observe(self, moments: GradientMoments) -> None:
        self.moments.append(moments)


@pytest.fixture(scope="module")
def single_gradients(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The gradient of each sample of the tiny workload at its first weights, shape (samples, parameters)."""
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path_factory.mktemp("single"))
    made = workload()
    network, rows, data = assemble(made, made.recipe, context, seed=0).network, [], made.train_set()
    for inputs, target in (data[index] for index in range(len(data))):
        network.zero_grad()
        made.loss(network(inputs[None]), torch.as_tensor(target)[None]).backward()
        rows.append(torch.cat([weights.grad.flatten() for weights in network.parameters()]).double())
    context.close()
    return torch.stack(rows)


@pytest.mark.parametrize(("local_batch", "accumulation"), [(16, 1), (8, 2), (4, 4)])
def test_moments_are_those_of_the_single_gradients_however_a_step_is_split(
    tmp_path: Path, single_gradients: torch.Tensor, local_batch: int, accumulation: int
) -> None:
    """Elsewhere the part that is accumulated first is scaled by another number than the whole: gains are off by it.

    Of steps drawn without replacement E ||g_n||^2 = ||G||^2 + tr(Sigma) (1/n - 1/N), N all samples.
    """
    trace = float(single_gradients.var(0).sum())
    square = float(single_gradients.mean(0).square().sum()) - trace / len(single_gradients)
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    made = workload()
    trainee = assemble(made, made.recipe, context, seed=0)
    meter, found = StepMoments(trainee, every=1), []
    trainee.methods.observe = found.append  # type: ignore[method-assign]
    layout = Layout(processes=1, local_batch=local_batch, accumulation=accumulation)
    stream = BatchStream(made.train_set(), samples=len(single_gradients), layout=layout, rank=0, seed=0)
    for step in itertools.islice(stream.from_samples(0), 500):
        run_step(trainee, step, 0.0, moments=meter.next(step))
    context.close()
    full = [each for each in found if each.global_samples == 16]
    read = np.array([(each.squared_gradient, each.trace_covariance) for each in full])
    error = read.std(axis=0) / np.sqrt(len(read))
    assert (np.abs(read.mean(axis=0) - [square, trace]) < 4 * error).all()
    assert error[1] < 0.1 * trace


def test_measurements_become_rarer_once_there_are_some(tmp_path: Path) -> None:
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    made = workload()
    meter = StepMoments(assemble(made, made.recipe, context, seed=0), every=3)
    layout = Layout(processes=1, local_batch=4, accumulation=1)
    stream = BatchStream(made.train_set(), samples=4, layout=layout, rank=0, seed=0)
    steps = list(itertools.islice(stream.from_samples(0), 43))
    measured = [number for number, step in enumerate(steps) if meter.next(step) is not None]
    context.close()
    assert measured == [*range(0, 30, 3), 30, 36, 42]
