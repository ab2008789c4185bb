"""The built-in workloads, each with the recipe that its reference batch size is known to train well with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tula_core.job import Recipe, Target
from tula_core.registry import Registry
from tula_core.workloads.datasets import cifar10, digits, fashion_mnist
from tula_core.workloads.folders import imagenet
from tula_core.workloads.measures import METRICS, cross_entropy
from tula_core.workloads.networks import mlp, resnet18_small, small_cnn, torchvision_network
from tula_core.workloads.types import Entry, Workload


def digits_cnn() -> Workload:
    """Return the small convolutional network on scikit-learn's digits."""
    return Workload(
        name="digits-cnn",
        network=partial(small_cnn, (1, 8, 8), 10),
        train_data=partial(digits, True),
        eval_data=partial(digits, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.05, batch_size=32, epochs=20),
        target=Target(value=0.97),
    )


def fashion_cnn() -> Workload:
    """Return the small convolutional network on Fashion-MNIST."""
    return Workload(
        name="fashion-cnn",
        network=partial(small_cnn, (1, 28, 28), 10),
        train_data=partial(fashion_mnist, True),
        eval_data=partial(fashion_mnist, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.05, batch_size=64, epochs=5),
        target=Target(value=0.87),
    )


def fashion_mlp() -> Workload:
    """Return the two-layer perceptron on Fashion-MNIST."""
    return Workload(
        name="fashion-mlp",
        network=partial(mlp, (1, 28, 28), 10),
        train_data=partial(fashion_mnist, True),
        eval_data=partial(fashion_mnist, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.05, batch_size=64, epochs=5),
        target=Target(value=0.87),
    )


def fashion_resnet18() -> Workload:
    """Return ResNet-18 with a small stem on Fashion-MNIST."""
    return Workload(
        name="fashion-resnet18",
        network=partial(resnet18_small, (1, 28, 28), 10),
        train_data=partial(fashion_mnist, True),
        eval_data=partial(fashion_mnist, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.05, batch_size=128, epochs=5),
        target=Target(value=0.91),
    )


def cifar10_resnet18() -> Workload:
    """Return ResNet-18 with a small stem on CIFAR-10, cropped and mirrored at random."""
    return Workload(
        name="cifar10-resnet18",
        network=partial(resnet18_small, (3, 32, 32), 10),
        train_data=partial(cifar10, True),
        eval_data=partial(cifar10, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(learning_rate=0.1, batch_size=128, epochs=30),
        target=Target(value=0.93),
    )


def imagenet_resnet50() -> Workload:
    """Return ResNet-50 on the folder ``TULA_DATA/imagenet``, after Goyal et al. 2017 (arXiv 1706.02677), section 5.1.

    The rate is theirs, 0.1 for a batch of 256, as are 90 epochs and the weight decay; the schedule is a cosine.
    """
    return Workload(
        name="imagenet-resnet50",
        network=partial(torchvision_network, "resnet50", (3, 224, 224), 1000),
        train_data=partial(imagenet, True),
        eval_data=partial(imagenet, False),
        loss=cross_entropy,
        metric=METRICS["accuracy"],
        recipe=Recipe(
            learning_rate=0.1,
            batch_size=256,
            epochs=90,
            weight_decay=1e-4,
            precision="bf16",
            channels_last=True,
            loader_workers=4,
        ),
        target=Target(value=0.75),
    )


WORKLOADS: Registry[Entry[Callable[[], Workload]]] = Registry(
    "workload",
    ("digits-cnn", Entry(description="a small CNN on scikit-learn's digits; nothing to download", make=digits_cnn)),
    ("fashion-cnn", Entry(description="a small CNN on Fashion-MNIST", make=fashion_cnn)),
    ("fashion-mlp", Entry(description="a two-layer perceptron on Fashion-MNIST", make=fashion_mlp)),
    ("fashion-resnet18", Entry(description="ResNet-18 on Fashion-MNIST", make=fashion_resnet18)),
    ("cifar10-resnet18", Entry(description="ResNet-18 on CIFAR-10, augmented", make=cifar10_resnet18)),
    ("imagenet-resnet50", Entry(description="ResNet-50 on an image folder as ImageNet has it", make=imagenet_resnet50)),
)
