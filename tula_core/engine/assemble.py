"""Putting a workload on a device: network, data-parallel wrapper, optimizer, scaler."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tula_core.engine.context import WorkerContext
from tula_core.engine.data_parallel import data_parallel
from tula_core.job import Recipe
from tula_core.mitigations.compose import Methods
from tula_core.seeding import derive_seed
from tula_core.workloads import WeightedLoss, Workload
from tula_core.workloads.weighted import loss_of_steps

_AS_IT_IS = contextlib.nullcontext()
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """Everything a step needs.

    ``module`` is the wrapped network where there are several processes; ``weighted`` is the loss as sum and weight
    where it is no mean over samples; ``methods`` are the hooks of the mitigations in use.
    """

    workload: Workload
    recipe: Recipe
    context: WorkerContext
    network: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    weighted: WeightedLoss | None = None
    methods: Methods = field(default_factory=Methods)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.context.device

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the precision context of the recipe."""
        dtype = _DTYPES.get(self.recipe.precision)
        return _AS_IT_IS if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def to_device(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return inputs and targets on the device, images in the recipe's memory format."""
        inputs, targets = batch
        inputs, targets = _moved(inputs, self.device), _moved(targets, self.device)
        if self.recipe.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        # Asked at each step: a look at where a tensor is costs a tenth of a call that then does nothing.
        return value if value.is_cpu and device.type == "cpu" else value.to(device, non_blocking=True)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return value


def assemble(
    workload: Workload, recipe: Recipe, context: WorkerContext, *, seed: int, methods: Methods | None = None
) -> Trainee:
    """Build the network from ``seed`` and make it ready to train; all processes get the same weights."""
    torch.manual_seed(derive_seed(seed, "initial weights"))
    methods = methods or Methods()
    network = methods.network(workload.network()).to(context.device)
    if recipe.channels_last:
        network = network.to(memory_format=torch.channels_last)
    module = data_parallel(network, context)
    scaler = torch.amp.GradScaler(context.device.type) if recipe.precision == "fp16" else None
    optimizer = methods.optimizer(network, recipe) or make_optimizer(network, recipe)
    methods.distributed(module, optimizer)
    return Trainee(
        workload=workload,
        recipe=recipe,
        context=context,
        network=network,
        module=module,
        optimizer=optimizer,
        scaler=scaler,
        weighted=loss_of_steps(workload),
        methods=methods,
    )


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over the trainable parameters, at the reference learning rate."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=recipe.momentum, weight_decay=decay)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay)


def share_buffers(network: nn.Module, context: WorkerContext) -> None:
    """Give every process rank 0's buffers, as the running statistics that count."""
    if context.processes > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, src=0)
