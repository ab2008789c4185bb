"""Built-in workloads cut to a part of their images, for benchmarks that have to end within minutes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tula_core.workloads import WORKLOADS, Workload

SAMPLES = 5000


class Part:
    """The first samples of a data set, with its batch access where it has one."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self._dataset = dataset
        self._samples = min(samples, len(dataset))
        self.deterministic = getattr(dataset, "deterministic", False)
        self.targets = dataset.targets[: self._samples]

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def get_batch(self, indices: np.ndarray[Any, Any]) -> Any:
        """Return the batch of some samples."""
        return self._dataset.get_batch(indices)


def _part(make: Any, samples: int) -> Part:
    return Part(make(), samples)


def fashion_resnet18_5k() -> Workload:
    """Return ResNet-18 on 5,000 images of Fashion-MNIST, evaluated on 1,000, for one epoch and without a target."""
    whole = WORKLOADS["fashion-resnet18"].make()
    return Workload(
        name="fashion-resnet18-5k",
        network=whole.network,
        train_data=partial(_part, whole.train_data, SAMPLES),
        eval_data=partial(_part, whole.eval_data, SAMPLES // 5),
        loss=whole.loss,
        metric=whole.metric,
        recipe=whole.recipe.model_copy(update={"epochs": 1}),
    )
