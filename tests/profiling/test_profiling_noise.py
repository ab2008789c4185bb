"""What a reading of the gradient noise needs beside the training's own gradient, by the tensors that are alive."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from live_bytes import LiveBytes
from profiling_workloads import Tiny, workload
from torch import nn

from tula_core.engine.context import WorkerContext
from tula_core.engine.noise_meter import squared_norm, sum_of_squares
from tula_core.engine.peak_memory import peak_bytes, reset_peak
from tula_core.job import Job
from tula_core.profiling.noise import PilotNoise
from tula_core.profiling.rig import Rig, StepFeed

SHAPES = {"one large layer": [4, 16, 2048, 1024, 16, 2], "even layers": [4, *[300] * 20, 2]}


class Shaped(nn.Module):
    """Layers of some widths; it can be told to run out of memory."""

    full = False

    def __init__(self, widths):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(*pair) for pair in zip(widths, widths[1:], strict=False)])

    def forward(self, inputs):
        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.layers(inputs)


@pytest.fixture
def rig_of(tmp_path, kept_signals, monkeypatch):
    """A measuring worker in this very process, on a network of one's own."""
    made = []

    def rig(network):
        own = replace(workload(batch_size=8), network=network)
        monkeypatch.setattr("tula_core.profiling.rig.load_workload", lambda job: own)
        job = Job(workload="profiling_workloads:tiny").resolved(own.recipe, None)
        made.append(WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path))
        task = {"job": job.to_dict(), "seconds": 60, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0}
        return Rig(made[-1], task)

    yield rig
    for context in made:
        context.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reading_needs_no_more_than_two_further_gradients(rig_of, shape: str) -> None:
    """Elsewhere copies of network and gradients lie beside the training: a pilot dies where a run fits."""
    rig = rig_of(lambda: Shaped(SHAPES[shape]))
    gradient_bytes = 4 * sum(parameter.numel() for parameter in rig.trainee.network.parameters())
    noise = PilotNoise(rig, rig.trainee, rig.layout(8), steps=16)
    for parameter in rig.trainee.network.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    step = StepFeed(rig, rig.layout(8)).next()
    for _ in range(3):
        observe = noise.observer(step)
        assert observe is not None
        with LiveBytes() as live:
            observe()
        assert 1.0 < live.peak_bytes / gradient_bytes < 2.2
        assert live.now_bytes < 0.01 * gradient_bytes
    assert noise.result().estimates == 3
    assert all(bool((parameter.grad == 0.5).all()) for parameter in rig.trainee.network.parameters())


def test_a_reading_that_does_not_fit_is_the_last_and_leaves_the_gradient(rig_of) -> None:
    """Elsewhere it ends the pilot, and the batch is said not to fit."""
    rig = rig_of(lambda: Shaped([4, 8, 2]))
    said = []
    rig.context.emit = lambda kind, **data: said.append(kind)
    noise = PilotNoise(rig, rig.trainee, rig.layout(8), steps=16)
    step = StepFeed(rig, rig.layout(8)).next()
    for parameter in rig.trainee.network.parameters():
        parameter.grad = torch.ones_like(parameter)
    rig.trainee.network.full = True
    for _ in range(3):
        noise.observer(step)()
    assert said == ["no_noise"] and noise.result() is None
    assert all(bool((parameter.grad == 1).all()) for parameter in rig.trainee.network.parameters())


def test_groups_of_a_pilot_that_accumulates_are_no_larger_than_its_micro_batches(rig_of) -> None:
    """A quarter of a batch of eight micro-batches is twice what was found to fit."""
    sizes = []

    class Counting(Tiny):
        def forward(self, inputs):
            sizes.append(len(inputs))
            return super().forward(inputs)

    rig = rig_of(Counting)
    layout = rig.layout(4, 8)
    noise = PilotNoise(rig, rig.trainee, layout, steps=16)
    noise.observer(StepFeed(rig, layout).next())()
    assert sizes == [4] * 4


@pytest.mark.parametrize("shape", [(2**24,), (1, 2**24), (64, 2**18), (256, 256, 16, 16)])
def test_a_sum_of_squares_copies_no_layer(shape: tuple[int, ...]) -> None:
    """In float64 a copy of a layer is twice the layer."""
    layer = torch.full(shape, 0.5)
    if layer.ndim == 4:
        layer = layer.contiguous(memory_format=torch.channels_last)
    device = torch.device("cpu")
    sum_of_squares(layer)
    reset_peak(device)
    before = peak_bytes(device)
    total = sum_of_squares(layer)
    grown = peak_bytes(device) - before
    assert float(total) == 0.25 * 2**24
    assert not Path("/proc/self/clear_refs").exists() or grown < 0.2 * 4 * 2**24


def test_squares_add_up_over_tensors() -> None:
    values = [torch.arange(7.0), torch.tensor(2.0), torch.ones(3, 5)]
    assert squared_norm(values) == pytest.approx(91 + 4 + 15)
    assert squared_norm([]) == 0.0
