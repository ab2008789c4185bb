"""Gradient noise during a pilot: over processes by a communication hook, or over groups of one process's samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from tula_core.engine.assemble import Trainee
from tula_core.engine.batches import Layout, Step
from tula_core.engine.evaluate import preserved_random_states
from tula_core.engine.failures import kind_of
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
            # No group is larger than a micro-batch of the pilot, which is known to fit.
            group = max(2, min(layout.global_batch // _GROUPS, layout.local_batch))
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
        """Add one estimate from the gradients of four groups; it leaves training alone.

        Beside the training's own gradient there is never more than a group's and the sum of them, since a reading has
        to fit where a step does. Where it does not, no more are taken.
        """
        if self._feed is None:
            return
        try:
            with _gradients_apart(self._trainee.network):
                self._add_reading(self._feed)
        except Exception as error:
            if kind_of(error) != "out_of_memory":
                raise
            self._feed = None
            self._rig.context.emit("no_noise")
            return
        self._feed.pause()

    def _add_reading(self, feed: StepFeed) -> None:
        trainee = self._trainee
        network = trainee.network
        mean: list[torch.Tensor] = []
        square = 0.0
        with preserved_random_states():  # reading data draws numbers too
            for batch in feed.next().micro_batches:
                inputs, targets = trainee.to_device(batch)
                with trainee.autocast():
                    loss = trainee.workload.loss(network(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                own = gradients(network)
                square += squared_norm(own) / _GROUPS
                for gradient in own:
                    gradient.div_(_GROUPS)
                for total, part in zip(mean, own, strict=bool(mean)):
                    total.add_(part)
                mean = mean or own
                del own
                network.zero_grad(set_to_none=True)
        self._meter.add(square, squared_norm(mean))


@contextlib.contextmanager
def _gradients_apart(network: torch.nn.Module) -> Iterator[None]:
    """Put the gradients that are there aside, and them and every buffer back as they were."""
    held = [(parameter, parameter.grad) for parameter in network.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    network.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
