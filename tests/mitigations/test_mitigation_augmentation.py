"""Batch augmentation: several copies of each image in a step, the same ones however the step is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset
from torchvision.transforms.v2 import functional as transforms

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step
from tula_core.errors import InputError
from tula_core.job import Job, Recipe
from tula_core.mitigations import make, options_of, resolve, step_cost
from tula_core.mitigations.inputs.augmentation import (
    BatchAugmentation,
    Crop,
    cropped,
    draw_crop,
    variance,
)
from tula_core.mitigations.method import Setting
from tula_core.seeding import fold
from tula_core.workloads import LOSSES, METRICS, Workload

NAME = "batch-augmentation"
SAMPLES = 29
ONE = Layout(processes=1, local_batch=12)


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 2, 8, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def setting(layout: Layout = ONE, **options: float) -> Setting:
    return Setting(
        recipe=Recipe(optimizer="sgd", learning_rate=0.1, batch_size=12, epochs=2),
        processes=layout.processes,
        rank=0,
        local_batch=layout.local_batch,
        accumulation=layout.accumulation,
        train_samples=SAMPLES,
        total_samples=2 * SAMPLES,
        seed=5,
        options=options_of(NAME, {NAME: options}),
    )


@pytest.mark.parametrize("padding", [(1, 2), (0, 3), (4, 4)])
def test_an_image_is_cropped_and_mirrored_as_torchvision_does_it(padding: tuple[int, int]) -> None:
    images = pictures(12)
    crops = [draw_crop(fold(7, index), *padding, mirror=True) for index in range(12)]
    assert {crop.mirrored for crop in crops} == {True, False}
    padded = transforms.pad(images, [padding[1], padding[0]], padding_mode="edge")
    expected = [transforms.crop(image, crop.top, crop.left, 8, 6) for image, crop in zip(padded, crops, strict=True)]
    turned = [
        transforms.horizontal_flip(image) if crop.mirrored else image
        for image, crop in zip(expected, crops, strict=True)
    ]
    assert torch.equal(cropped(images, crops, *padding), torch.stack(turned))


@given(seed=st.integers(0, 2**63 - 1), height=st.integers(0, 8), width=st.integers(0, 8))
def test_a_window_lies_within_the_padded_image_and_is_not_mirrored_unasked(seed: int, height: int, width: int) -> None:
    crop = draw_crop(seed, height, width, mirror=False)
    assert 0 <= crop.top <= 2 * height and 0 <= crop.left <= 2 * width and not crop.mirrored


def test_all_windows_are_equally_likely() -> None:
    method = BatchAugmentation(setting(shift=0.125, mirror=1))
    marked = torch.zeros(1, 1, 8, 8)
    marked[0, 0, 4, 3] = 1.0
    seen = method.augment(marked.expand(3600, 1, 8, 8), 0, 0)
    places, counts = seen.flatten(1).argmax(dim=1).unique(return_counts=True)
    assert len(places) == 12  # three rows; three columns, and their mirrors, two of which are the same
    assert int(counts.sum()) == 3600 and int(counts.min()) > 140
    assert len(method.augment(marked.expand(99, 1, 8, 8), 0, 1).flatten(1).argmax(dim=1).unique()) == 12


def test_a_copy_depends_on_the_samples_place_the_number_of_the_copy_and_the_jobs_seed() -> None:
    method = BatchAugmentation(setting(shift=0.25, mirror=1))
    images = pictures(12)
    whole = method.augment(images, 30, 1)
    assert torch.equal(torch.cat([method.augment(images[:5], 30, 1), method.augment(images[5:], 35, 1)]), whole)
    assert not torch.equal(method.augment(images, 30, 2), whole)
    assert not torch.equal(method.augment(images, 31, 1), whole)
    again = torch.random.get_rng_state()
    method.augment(images, 30, 1)
    assert torch.equal(torch.random.get_rng_state(), again), "dropout would draw other numbers"


def test_switched_off_it_gives_the_very_tensor_back() -> None:
    images = pictures(3)
    assert BatchAugmentation(setting(copies=1, shift=0.0)).augment(images, 0, 0) is images
    assert BatchAugmentation(setting(shift=0.05)).augment(images, 0, 0) is images  # less than half a pixel


@pytest.mark.parametrize(("samples", "copies"), [(1, 4), (8, 4), (8, 1)])
def test_the_variance_lies_where_the_correlation_of_copies_puts_it(samples: int, copies: int) -> None:
    """A fixed linear function of the crop stands for a gradient; rho is measured on pairs of copies."""
    method = BatchAugmentation(setting(copies=copies, shift=0.25, mirror=1))
    groups = 1500
    smooth = nn.functional.avg_pool2d(pictures(samples * groups, seed=3), 3, stride=1, padding=1)
    weights = pictures(1, seed=4)
    found = [(method.augment(smooth, 0, copy) * weights).sum(dim=(1, 2, 3)).numpy() for copy in range(max(copies, 2))]
    values = np.array(found) - np.mean(found)
    rho, spread = np.mean(values[0] * values[1]) / np.mean(values**2), np.mean(values**2)
    means = values[:copies].reshape(copies, groups, samples).mean(axis=(0, 2))
    assert 0.05 < rho < 0.95
    assert means.var() / spread == pytest.approx(variance(samples, copies, rho), rel=0.15)
    assert variance(samples, copies, 1.0) == pytest.approx(1 / samples)
    assert variance(samples, copies, 0.0) == pytest.approx(1 / (samples * copies))


class Net(nn.Module):
    """Counts the samples it is shown; without batch norm, whose groups are the micro-batches."""

    shown = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.head = nn.Linear(3, 3)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        Net.shown += len(inputs)
        return self.head(self.conv(inputs).tanh().amax(dim=(2, 3)))


def workload() -> Workload:
    data = TensorDataset(pictures(SAMPLES), torch.arange(SAMPLES) % 3)
    return Workload(
        name="pictures",
        network=Net,
        train_data=data,
        eval_data=data,
        loss=LOSSES["cross_entropy"],
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.1, batch_size=12, epochs=2),
    )


def gradients(folder: Path, layout: Layout, names: list[str], seen: int, **options: float) -> torch.Tensor:
    """Return the gradient of the step after ``seen`` samples, added up over the processes of a layout."""
    made = workload()
    total: Any = 0.0
    for rank in range(layout.processes):
        context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, folder)
        methods = make(names, setting(layout), {NAME: options} if options else {})
        trainee = assemble(made, made.recipe, context, seed=0, methods=methods)
        stream = BatchStream(made.train_set(), samples=SAMPLES, layout=layout, rank=rank, seed=5)
        run_step(trainee, next(stream.from_samples(seen)), 0.0)
        total = total + torch.cat([weights.grad.flatten() for weights in trainee.network.parameters()])
        context.close()
    assert isinstance(total, torch.Tensor)
    return total


@pytest.mark.parametrize("seen", [0, 12, 24])
def test_a_step_has_the_same_gradient_on_any_processes_and_in_any_micro_batches(tmp_path: Path, seen: int) -> None:
    options = {"copies": 3, "shift": 0.2, "mirror": 1}
    one = gradients(tmp_path, ONE, [NAME], seen, **options)
    for processes, local_batch, accumulation in ((1, 4, 3), (2, 6, 1), (2, 3, 2)):
        layout = Layout(processes=processes, local_batch=local_batch, accumulation=accumulation)
        assert torch.allclose(gradients(tmp_path, layout, [NAME], seen, **options), one, rtol=1e-10, atol=1e-13)
    assert not torch.allclose(gradients(tmp_path, ONE, [], seen), one, rtol=1e-3)


def test_equal_copies_have_the_gradient_of_the_batch_and_cost_their_number(tmp_path: Path) -> None:
    plain = gradients(tmp_path, ONE, [], 0)
    Net.shown = 0
    copied = gradients(tmp_path, ONE, [NAME], 0, copies=4, shift=0.0)
    assert torch.allclose(copied, plain, rtol=1e-12, atol=1e-15)
    assert Net.shown == 4 * 12 == step_cost([NAME], {NAME: {"copies": 4}}) * 12


def test_the_cost_of_a_step_is_the_number_of_copies() -> None:
    assert step_cost([NAME], {}) == 2.0 and step_cost(["sam", NAME], {NAME: {"copies": 3}}) == 6.0
    job = Job(workload="digits-cnn", mitigation=[NAME], mitigation_options={NAME: {"copies": 2.5}})
    with pytest.raises(InputError, match=r"batch-augmentation\.copies: 2\.5 is not a whole number"):
        resolve(job)


def test_what_measures_noise_between_samples_is_refused_beside_copies() -> None:
    for other in ("adascale", "adaptive-batch"):
        with pytest.raises(InputError, match="copies of an image are no samples of their own"):
            resolve(Job(workload="digits-cnn", mitigation=[NAME, other]))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_crop_that_is_off_by_nothing_is_the_image_in_its_own_type_and_format(kind: torch.dtype) -> None:
    images = (pictures(2) * 50).abs().to(kind)
    middle = [Crop(top=1, left=2, mirrored=False)] * 2
    assert torch.equal(cropped(images, middle, 1, 2), images)
    channels_last = cropped(images.contiguous(memory_format=torch.channels_last), middle, 1, 2)
    assert torch.equal(channels_last, images) and channels_last.dtype == kind
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
