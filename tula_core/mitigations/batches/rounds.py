"""The hook of `tula_core.mitigations.batches.dual`: a round of updates on each process alone, then one merge.

A round is a step of the plan: every process begins with the same weights W and uses its share of the step's samples, a
large one for one update, a small one for several. With U_k the sum over the updates of process k of what momentum makes
of its gradients (eta U_k is what its weights moved), and d_k its samples of all d,

    W <- W - eta U,  U = sum_k (d_k/d) U_k

and the momentum of all goes on as U over the mean number of updates, sum_k (d_k/d) m_k. Lu et al. 2025, arXiv
2509.26092, move W by half of f_k (W_k - W) as each process arrives, with f_k = d_S/d_L for a small one and 1 for a
large one: the weights here stand to each other as theirs, and sum to one, which makes equal processes plain data
parallelism, exactly. A merge sends as much as a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tula_core.errors import InputError
from tula_core.mitigations.batches.dual import DualBatch, dual_batch, updates_of
from tula_core.mitigations.method import Method, Setting, own


class DualBatchRounds(Method):
    """Shares a step unevenly, lets each process update on its own and merges; on one process it does nothing."""

    steps_alone: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.processes > 1 and setting.recipe.precision == "fp16":
            raise InputError(
                "recipe.precision: 'fp16' does not go with the mitigation 'dual-batch': processes that update on their "
                "own would scale their losses apart. Use bf16 or fp32, or leave the method out."
            )
        options = setting.options
        self._dual: DualBatch | None = None
        if setting.processes > 1:
            self._dual = dual_batch(
                setting.global_batch,
                setting.processes,
                options["small_share"],
                options["extra"],
                options["fixed_samples"],
            )
        self._optimizer: torch.optim.Optimizer | None = None
        self._shares_buffers = False
        self._begun: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._samples = 0
        self._updates = 0
        self._updates_of_small = 0.0

    def distributed(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep the optimizer, whose updates are followed."""
        self._optimizer = optimizer
        self._shares_buffers = isinstance(module, DistributedDataParallel) and module.broadcast_buffers

    @property
    def shares(self) -> Sequence[tuple[float, int]] | None:
        """The weight of each process among a step's samples, and the samples in each of its updates."""
        return None if self._dual is None else self._dual.shares

    def updates(self, sizes: Sequence[int]) -> Sequence[range]:
        """Return which micro-batches make up each update of this process."""
        self._samples = sum(sizes)
        if self._dual is None:
            return super().updates(sizes)
        return updates_of(sizes, self._dual.shares[self.setting.rank][1])

    def begin_alone(self, network: nn.Module) -> None:
        """Keep the weights that all processes share."""
        if self._dual is None:
            return
        trained = _trained(network)
        self._begun = own([parameter.data for parameter in trained])
        self._sums = [torch.zeros_like(parameter) for parameter in trained]
        self._updates = 0

    @torch.no_grad()
    def after_alone(self, network: nn.Module) -> None:
        """Add the update that was just made."""
        if self._dual is None:
            return
        for total, begun, parameter in zip(self._sums, self._begun, _trained(network), strict=True):
            if not self._group["momentum"]:
                total.copy_(begun - parameter)  # of all updates so far
            elif (kept := self._state_of(parameter).get("momentum_buffer")) is not None:
                total.add_(kept)
        self._updates += 1

    @torch.no_grad()
    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Merge the updates of all processes; then they hold the same weights and momenta."""
        if self._dual is None:
            return
        self.after_alone(network)
        share = self._samples / global_samples
        flat = torch.cat([total.flatten() for total in self._sums]).mul_(share)
        dist.all_reduce(flat)
        small = self._updates if self._dual.is_small(self.setting.rank) else 0
        counts = flat.new_tensor([share * self._updates, small], dtype=torch.float64)
        dist.all_reduce(counts)
        self._updates_of_small = float(counts[1]) / self._dual.small_processes
        self._take(network, flat, mean_updates=float(counts[0]))
        for buffer in network.buffers() if self._shares_buffers else ():
            dist.broadcast(buffer, src=0)
        self._begun, self._sums = [], []

    def _take(self, network: nn.Module, flat: Tensor, mean_updates: float) -> None:
        momentum = self._group["momentum"]
        rate = self._group["lr"] if momentum else 1.0
        position = 0
        for parameter, begun in zip(_trained(network), self._begun, strict=True):
            merged = flat[position : position + parameter.numel()].view_as(parameter)
            position += parameter.numel()
            parameter.copy_(begun.add(merged, alpha=-rate))
            if momentum:
                self._state_of(parameter)["momentum_buffer"] = merged / mean_updates

    @property
    def _group(self) -> dict[str, Any]:
        assert self._optimizer is not None
        group: dict[str, Any] = self._optimizer.param_groups[0]
        return group

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        assert self._optimizer is not None
        state: dict[str, Any] = self._optimizer.state[parameter]
        return state

    def decided(self) -> dict[str, float]:
        """Return the batch of the small processes and how many updates they made in the latest step."""
        if self._dual is None:
            return {}
        return {"small_batch": float(self._dual.small_batch), "updates_of_small": self._updates_of_small}


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
