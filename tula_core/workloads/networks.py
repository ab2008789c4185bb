"""The networks a job can name: each is built for the shape of a sample and the number of outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

from torch import Tensor, nn

from tula_core.errors import InputError, nearest
from tula_core.registry import Registry
from tula_core.workloads.types import Entry

Shape = tuple[int, ...]
NetworkMaker = Callable[[Shape, int], nn.Module]


def small_cnn(shape: Shape = (1, 28, 28), outputs: int = 10, channels: int = 16) -> nn.Module:
    """Return three 3x3 convolutions of stride 2 with BatchNorm, a mean over the image, and a linear layer."""
    layers: list[nn.Module] = []
    before = shape[0]
    for _ in range(3):
        layers += [nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))


def mlp(shape: Shape = (1, 28, 28), outputs: int = 10, width: int = 128) -> nn.Module:
    """Return two hidden layers of ``width`` over the flattened sample."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def resnet18_small(shape: Shape = (3, 32, 32), outputs: int = 10) -> nn.Module:
    """Return torchvision's ResNet-18 for images of some 32 pixels: a 3x3 stem of stride 1 without pooling."""
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None, num_classes=outputs)
    network.conv1 = nn.Conv2d(shape[0], 64, 3, stride=1, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


class GreyToColour(nn.Module):
    """Repeats the one channel of a grey image three times, for networks whose stem takes colour."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 3, height, width) for (n, 1, height, width)."""
        return images.expand(-1, 3, -1, -1)


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classification networks."""
    import torchvision.models

    return list(torchvision.models.list_models(module=torchvision.models))


def torchvision_network(name: str, shape: Shape, outputs: int) -> nn.Module:
    """Return a torchvision classification network, untrained; grey images are repeated over its three channels."""
    import torchvision.models

    builder = torchvision.models.get_model_builder(name)
    options: dict[str, object] = {"weights": None, "num_classes": outputs}
    if name in ("googlenet", "inception_v3"):
        # Their auxiliary outputs would turn the result into a tuple; without the flag they warn about a slow start.
        options |= {"aux_logits": False, "init_weights": True}
    network: nn.Module = builder(**options)
    return nn.Sequential(GreyToColour(), network) if shape[:1] == (1,) else network


def network_maker(name: str) -> NetworkMaker:
    """Return the maker of a network by registry name or torchvision name.

    Raises
    ------
    InputError
        Neither knows the name.
    """
    if name in NETWORKS:
        return NETWORKS[name].make
    known = torchvision_names()
    if name not in known:
        raise InputError(
            f"network: {name!r} is unknown. {nearest(name, [*NETWORKS, *known])} "
            "Or give package.module:function, which returns a new network."
        )
    return lambda shape, outputs: torchvision_network(name, shape, outputs)


def wants_shape(function: Callable[..., object]) -> bool:
    """Return whether a user's network function takes the sample's shape and the number of outputs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2


def _resnet50(shape: Shape, outputs: int) -> nn.Module:
    return torchvision_network("resnet50", shape, outputs)


NETWORKS: Registry[Entry[NetworkMaker]] = Registry(
    "network",
    ("small-cnn", Entry(description="three small convolutions with BatchNorm, about 5,000 weights", make=small_cnn)),
    ("mlp", Entry(description="two hidden layers of 128, about 118,000 weights on 28x28 images", make=mlp)),
    ("resnet18-small", Entry(description="ResNet-18 with a 3x3 stem, for small images", make=resnet18_small)),
    ("resnet50", Entry(description="torchvision's ResNet-50, for images of some 224 pixels", make=_resnet50)),
)
