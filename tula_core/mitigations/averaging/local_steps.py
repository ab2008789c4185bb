"""Post-local SGD: late in the run each process steps on its own and the weights are averaged now and then.

Use: several processes on a slow network, or to bring small-batch noise back in the last part. Cost: less
communication. Hyperparameters: ``begins`` (0.5), the share of the run after which steps are local; ``period`` (8)
steps between averages. Evidence: ViT-B with local steps 26.7 to 20.2 h at +1.2 points (Gu et al. 2023, abstract); at
ImageNet scale it also lowered accuracy (Ortiz et al. 2021, abstract). Source: Lin et al. 2020, arXiv 1808.07217,
algorithm 2. Gradients are kept apart by torch's own ``post_localSGD_hook``, weights averaged by its
``PeriodicModelAverager``; momentum is averaged with the weights, so that all processes are alike after each average.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from tula_core.mitigations.method import Batches, Method, Setting


def local_from_step(begins: float, total_samples: int, global_batch: int) -> int:
    """Return the first local step, counted from 0: the whole synchronous part comes before it."""
    return int(begins * total_samples // global_batch)


class PostLocalSgd(Method):
    """Stops averaging gradients at its moment and averages weights instead."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._first = local_from_step(setting.options["begins"], setting.total_samples, setting.global_batch)
        self._steps = 0
        self._together_at = 0  # steps at which all processes last had the same weights
        self._optimizer: torch.optim.Optimizer | None = None
        self._state: Any = None
        self._averager: Any = None

    def distributed(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Hang the hook on the data-parallel wrapper; one process has nothing to average with."""
        if not isinstance(module, DistributedDataParallel):
            return
        self._optimizer = optimizer
        alone, _ = dist.new_subgroups(group_size=1)
        self._state = PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None, subgroup=alone, start_localSGD_iter=self._first, post_local_gradient_allreduce=False
        )
        module.register_comm_hook(self, lambda method, bucket: post_localSGD_hook(method.communication(), bucket))
        period = int(self.setting.options["period"])
        self._averager = PeriodicModelAverager(period=period, warmup_steps=self._first)
        self._averager.step = self._steps

    @property
    def at_rest(self) -> bool:
        """Whether all processes hold the same weights, so that a checkpoint or an evaluation speaks for all."""
        local = self._steps - self._first
        due = local <= 0 or local % int(self.setting.options["period"]) == 0
        return self._averager is None or due or self._together_at == self._steps

    @property
    def apart(self) -> bool:
        """Whether the gradients of the coming update are this process's own."""
        return self._averager is not None and self._steps >= self._first

    def communication(self) -> Any:
        """Return the state of torch's hook, whose count is that of the updates made: a skipped one moves nothing."""
        self._state.iter = self._steps
        return self._state

    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Average weights and momenta where the period ends, and where the run does."""
        if self._averager is None or self._optimizer is None:
            return
        self._steps += 1
        ends = samples_seen >= self.setting.total_samples
        if self._steps > self._first and (self.at_rest or ends):
            self.average(network)

    @torch.no_grad()
    def average(self, network: nn.Module) -> None:
        """Set weights, floating buffers and momenta of all processes to their means."""
        assert self._optimizer is not None
        tensors = [parameter.data for parameter in network.parameters()]
        tensors += [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        for state in self._optimizer.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value) and value.ndim > 0]
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor.div_(self.setting.processes)
        self._together_at = self._steps

    @contextlib.contextmanager
    def evaluating(self, network: nn.Module, batches: Batches) -> Iterator[None]:
        """Average first where that is not done: each process would score its part with weights of its own."""
        if not self.at_rest:
            self.average(network)
        yield

    def state(self) -> dict[str, Any]:
        """Return the updates made, and after which of them all processes were last alike."""
        return {"steps": self._steps, "together_at": self._together_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the steps taken."""
        self._steps, self._together_at = state["steps"], state["together_at"]

    def decided(self) -> dict[str, float]:
        """Return whether steps are local."""
        return {"local": float(self.apart)}
