"""Gradient noise during a pilot: over processes by a communication hook, or over groups of one process's samples."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from tula_core.engine.assemble import Trainee
from tula_core.engine.batches import Layout, Step
from tula_core.engine.evaluate import preserved_random_states
from tula_core.engine.noise_meter import HookedNoise, NoiseMeter, gradients, squared_norm
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.records import GradientNoise

_GROUPS = 4
_READINGS = 16  # with one process; each costs about one step
_OWN_EPOCH = 10**6  # an order of samples that training does not use


class PilotNoise:
    """Takes estimates over the second half of a pilot; make it before the pilot, give `observer` to each late step."""

    def __init__(self, rig: Rig, trainee: Trainee, layout: Layout, steps: int) -> None:
        self._rig = rig
        self._trainee = trainee
        self._full = layout.global_batch
        self._seen = 0
        self._every = max(1, (steps - steps // 2) // _READINGS)
        self._hooked: HookedNoise | None = None
        if rig.context.processes > 1:
            self._meter = NoiseMeter(rig.context.processes, layout.local_batch * layout.accumulation)
        else:
            group = max(2, layout.global_batch // _GROUPS)
            self._meter = NoiseMeter(_GROUPS, group)
            fits = group * _GROUPS <= rig.samples
            groups = Layout(processes=1, local_batch=group, accumulation=_GROUPS)
            self._feed = StepFeed(rig, groups, epoch=_OWN_EPOCH) if fits else None

    def observer(self, step: Step) -> Callable[[], None] | None:
        """Return what `run_step` should call when the gradients of ``step`` are complete."""
        if self._rig.context.processes == 1:
            self._seen += 1
            return self._read_groups if self._seen % self._every == 0 else None
        if self._hooked is None:  # only now: the first half of the pilot does not pay for it
            self._hooked = HookedNoise(self._trainee, self._meter)
        return self._hooked.end_step if step.global_samples == self._full else self._hooked.discard_step

    def result(self) -> GradientNoise | None:
        """Return the averages so far."""
        return self._meter.result()

    def _read_groups(self) -> None:
        """Add one estimate from the gradients of four groups, on a copy of the network that leaves training alone."""
        if self._feed is None:
            return
        trainee = self._trainee
        network = copy.deepcopy(trainee.network)  # with its flags: a part frozen in evaluation mode stays so
        mean: list[torch.Tensor] = []
        square = 0.0
        with preserved_random_states():  # reading data draws numbers too
            for batch in self._feed.next().micro_batches:
                network.zero_grad(set_to_none=True)
                inputs, targets = trainee.to_device(batch)
                with trainee.autocast():
                    loss = trainee.workload.loss(network(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                own = gradients(network)
                square += squared_norm(own) / _GROUPS
                mean = [a + b / _GROUPS for a, b in zip(mean, own, strict=True)] if mean else [g / _GROUPS for g in own]
        self._meter.add(square, squared_norm(mean))
        self._feed.pause()
