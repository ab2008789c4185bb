"""A workload of one's own: Tula needs the network, the data, the loss, the metric and a recipe, not the training loop.

Try it from this folder: ``tula plan job.yaml``.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tula_core.job import Recipe, Target
from tula_core.workloads import LOSSES, METRICS, Workload


class Stripes(Dataset):
    """Pictures of noisy stripes; the class is their direction: 0 horizontal, 1 vertical, 2 diagonal."""

    classes = ("horizontal", "vertical", "diagonal")

    def __init__(self, length, seed, transform=None):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(0, 3, (length,), generator=generator)
        row, column = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        patterns = torch.stack([row % 4 < 2, column % 4 < 2, (row + column) % 4 < 2]).float()
        noise = torch.randn(length, 16, 16, generator=generator)
        self.images = patterns[self.targets] + 0.8 * noise
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].unsqueeze(0)
        return (self.transform(image) if self.transform else image), self.targets[index]


class StripeNetwork(nn.Module):
    """One convolution, the mean of its squares, a linear layer."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv2d(1, 12, kernel_size=5, padding=2)
        self.head = nn.Linear(12, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit per direction."""
        return self.head(self.filters(images).square().mean(dim=(2, 3)))


def make_workload():
    """Return what is trained; the job names this function."""
    return Workload(
        name="stripes",
        network=StripeNetwork,
        train_data=Stripes(2000, seed=1, transform=lambda image: (image - 0.5) / 0.9),
        eval_data=Stripes(500, seed=2, transform=lambda image: (image - 0.5) / 0.9),
        loss=LOSSES["cross_entropy"],
        metric=METRICS["accuracy"],
        recipe=Recipe(optimizer="sgd", learning_rate=0.02, batch_size=32, epochs=5, schedule="cosine"),
        target=Target(metric="accuracy", value=0.95),
    )
