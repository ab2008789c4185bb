"""Batch augmentation: each image of a batch counts several times, cropped and mirrored anew each time.

Use: large batches where devices idle or reading data is what takes the time; one label for an image, not a map or a
place in it. Cost: ``copies`` times the computation of a step, at the communication and memory of one. Hyperparameters:
``copies`` (2) of each image; ``shift`` (0.125) of a side that a crop may be off; ``mirror`` (0), 1 to mirror by chance,
which makes digits and letters others than their labels say. Evidence: fewer updates to equal accuracy, and better
accuracy, on CIFAR and ImageNet (Hoffer et al. 2020, abstract). Source: Hoffer et al. 2020, CVPR, arXiv 1901.09335,
equation 2. The copies pass one after the other as groups of their own, unlike the paper's one larger batch, so batch
norm never sees two copies of one image together and the memory is that of one. Batch, learning rate, epochs and samples
seen count each image once, whatever the copies.

>>> variance(samples=64, copies=4, correlation=1.0), variance(samples=64, copies=4, correlation=0.0)
(0.015625, 0.00390625)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tula_core.mitigations.method import Method, Setting
from tula_core.seeding import derive_seed, fold


def variance(samples: int, copies: int, correlation: float) -> float:
    """Return the variance of the mean gradient over n images of M copies each, over that of one sample's gradient.

    (rho + (1 - rho)/M)/n, with rho the correlation of the gradients of two copies of one image: between the variances
    of n and of M n samples. From the variance of a mean of correlated numbers.
    """
    return (correlation + (1.0 - correlation) / copies) / samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """Where the window of one image lies in the image padded on all sides, and whether it is mirrored."""

    top: int
    left: int
    mirrored: bool


def draw_crop(seed: int, height_padding: int, width_padding: int, *, mirror: bool) -> Crop:
    """Return a window that depends on ``seed`` alone, all places equally likely."""
    number, top = divmod(seed, 2 * height_padding + 1)
    number, left = divmod(number, 2 * width_padding + 1)
    return Crop(top=top, left=left, mirrored=mirror and number % 2 == 1)


def cropped(images: Tensor, crops: Sequence[Crop], height_padding: int, width_padding: int) -> Tensor:
    """Return the window of each image, shape (n, C, h, w) as the images; beyond an edge its last pixels go on.

    A zero would stand for another grey with each normalisation of the data, the edge does not. Any type of number and
    either memory format will do, and stays.
    """
    count, channels, height, width = images.shape
    tops, lefts, mirrored = torch.tensor(
        [(crop.top, crop.left, crop.mirrored) for crop in crops], device=images.device
    ).T.unsqueeze(2)
    along = torch.arange(width, device=images.device)
    rows = (torch.arange(height, device=images.device) + tops - height_padding).clamp(0, height - 1)
    columns = (torch.where(mirrored.bool(), along.flip(0), along) + lefts - width_padding).clamp(0, width - 1)
    which = torch.arange(count, device=images.device)[:, None, None, None]
    every = torch.arange(channels, device=images.device)[None, :, None, None]
    taken = images[which, every, rows[:, None, :, None], columns[:, None, None, :]]
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return taken.contiguous(memory_format=torch.channels_last) if last else taken


class BatchAugmentation(Method):
    """Passes each micro-batch several times, cropped by the place of each sample in the run and the copy's number.

    So a sample's copies are the same on any processes, in any micro-batches and after a resumption.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._seed = derive_seed(setting.seed, "augmentation")

    @property
    def copies(self) -> int:
        """How often each micro-batch is passed."""
        return int(self.setting.options["copies"])

    def augment(self, inputs: Any, first: int, copy: int) -> Any:
        """Return the inputs, shape (n, C, h, w), each cropped and mirrored on its own."""
        shift, mirror = self.setting.options["shift"], self.setting.options["mirror"] >= 1
        height, width = (round(shift * int(side)) for side in inputs.shape[2:])
        if not (height or width or mirror):
            return inputs
        crops = [
            draw_crop(fold(self._seed, first + index, copy), height, width, mirror=mirror)
            for index in range(len(inputs))
        ]
        return cropped(inputs, crops, height, width)
