"""Post-local SGD: late in the run each process steps on its own and the weights are averaged now and then.

Use: several processes on a slow network, or to bring small-batch noise back in the last part. Cost: less
communication. Hyperparameters: ``begins`` (0.5), the share of the run after which steps are local; ``period`` (8)
steps between averages. Evidence: ViT-B with local steps 26.7 to 20.2 h at +1.2 points (Gu et al. 2023, abstract); at
ImageNet scale it also lowered accuracy (Ortiz et al. 2021, abstract). Source: Lin et al. 2020, arXiv 1808.07217,
algorithm 2. Gradients are kept apart by torch's own ``post_localSGD_hook``, weights averaged by its
``PeriodicModelAverager``; momentum is averaged with the weights, so that all processes are alike after each average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from tula_core.mitigations.method import Method, Setting


def local_from_step(begins: float, total_samples: int, global_batch: int) -> int:
    """Return the first local step, counted from 0: the whole synchronous part comes before it."""
    return int(begins * total_samples // global_batch)


class PostLocalSgd(Method):
    """Stops averaging gradients at its moment and averages weights instead."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._first = local_from_step(setting.options["begins"], setting.total_samples, setting.global_batch)
        self._steps = 0
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
        self._state.iter = self._steps
        module.register_comm_hook(self._state, post_localSGD_hook)
        period = int(self.setting.options["period"])
        self._averager = PeriodicModelAverager(period=period, warmup_steps=self._first)
        self._averager.step = self._steps

    @property
    def at_rest(self) -> bool:
        """Whether all processes hold the same weights, so that a checkpoint or an evaluation speaks for all."""
        local = self._steps - self._first
        return self._averager is None or local <= 0 or local % int(self.setting.options["period"]) == 0

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

    def state(self) -> dict[str, Any]:
        """Return the steps taken."""
        return {"steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the steps taken."""
        self._steps = state["steps"]
        if self._state is not None:
            self._state.iter = self._steps

    def decided(self) -> dict[str, float]:
        """Return whether steps are local."""
        return {"local": float(self._averager is not None and self._steps >= self._first)}
