"""`Methods`: the methods of one run together, called only where one of them does something."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tula_core.job import Recipe
from tula_core.mitigations.method import Batches, GradientMoments, Method, overrides

if TYPE_CHECKING:
    import torch
    from torch import nn


class Methods:
    """Calls each method in the order given; without methods every call costs a look at an empty list.

    Parameters
    ----------
    methods
        Pairs of name and method, from `tula_core.mitigations.make`.
    """

    def __init__(self, methods: Sequence[tuple[str, Method]] = ()) -> None:
        self.named = tuple(methods)
        every = [method for _, method in methods]
        self.copies = math.prod(method.copies for method in every)
        self.augmenting = [m for m in every if overrides(m, "augment")]
        self.preparing = [m for m in every if overrides(m, "prepare")]
        self.weighting = [m for m in every if overrides(m, "loss_weights")]
        self.alone = [m for m in every if m.steps_alone]
        self.perturbing = [m for m in every if m.second_pass]
        self._timing = [m for m in every if overrides(m, "clock")]
        self._rating = sorted((m for m in every if overrides(m, "rate")), key=lambda m: not m.sets_rate)
        self._observing = [m for m in every if m.needs_moments]
        # The weights are brought together before another method looks at them.
        self._following = sorted((m for m in every if overrides(m, "after_step")), key=lambda m: not m.steps_alone)
        self._hearing = [m for m in every if overrides(m, "heard")]
        self._parting = [m for m in every if overrides(m, "apart")]
        evaluating = [m for m in every if overrides(m, "evaluating")]
        self._evaluating = sorted(evaluating, key=lambda m: m not in self._parting)
        assert len(self.alone) + len(self.perturbing) < 2 and len(self._timing) < 2, "methods that exclude each other"

    @property
    def need_moments(self) -> bool:
        """Whether any method asks for the moments of the gradient."""
        return bool(self._observing)

    @property
    def shares(self) -> tuple[tuple[float, int], ...] | None:
        """How the one method that sets them shares a step's samples among the processes, None where none does."""
        found = next((shares for method in self.alone if (shares := method.shares) is not None), None)
        return None if found is None else tuple(found)

    def network(self, network: nn.Module) -> nn.Module:
        """Return the network as all methods want it."""
        for _, method in self.named:
            network = method.network(network)
        return network

    def optimizer(self, network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer | None:
        """Return the optimizer of the one method that brings its own, None where none does."""
        made = [found for _, method in self.named if (found := method.optimizer(network, recipe)) is not None]
        assert len(made) < 2, "two methods bring an optimizer"
        return made[0] if made else None

    def distributed(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Tell of the wrapped network and the optimizer."""
        for _, method in self.named:
            method.distributed(module, optimizer)

    @property
    def at_rest(self) -> bool:
        """Whether all processes hold the same weights."""
        return all(method.at_rest for _, method in self.named)

    @property
    def apart(self) -> bool:
        """Whether each process makes the coming update with gradients of its own."""
        return any(method.apart for method in self._parting)

    @property
    def own_state(self) -> bool:
        """Whether any method has a state of its own on each process."""
        return any(method.own_state for _, method in self.named)

    def next_batch(self, current: int) -> int:
        """Return the global batch to go on with."""
        for _, method in self.named:
            current = method.next_batch(current)
        return current

    def clock(self, samples_seen: float) -> float:
        """Return the position of the learning-rate schedule, in samples."""
        for method in self._timing:
            samples_seen = method.clock(samples_seen)
        return samples_seen

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the learning rate of the next step."""
        for method in self._rating:
            planned = method.rate(planned, samples_seen)
        return planned

    def peaks(self, planned: float) -> tuple[float, float, tuple[str, ...]]:
        """Return between which rates the highest of the run will be, and the names of the methods that say so."""
        least = most = planned
        named = {id(method): name for name, method in self.named}
        changing = []
        for method in self._rating:
            found = method.peaks(least, most)
            if found != (least, most):
                changing.append(named[id(method)])
            least, most = found
        return least, most, tuple(changing)

    def augment(self, inputs: Any, first: int, copy: int) -> Any:
        """Return one copy of a micro-batch's inputs as all methods want it."""
        for method in self.augmenting:
            inputs = method.augment(inputs, first, copy)
        return inputs

    def prepare(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        """Return inputs and targets as all methods want them."""
        for method in self.preparing:
            inputs, targets = method.prepare(inputs, targets, seed)
        return inputs, targets

    def loss_weights(self, micro_batches: int, seed: int) -> list[float]:
        """Return the weight of each micro-batch of this process."""
        weights = [1.0] * micro_batches
        for method in self.weighting:
            found = method.loss_weights(micro_batches, seed)
            if found is not None:
                weights = [old * new for old, new in zip(weights, found, strict=True)]
        return weights

    def observe(self, moments: GradientMoments) -> None:
        """Pass the moments of a step's gradient on."""
        for method in self._observing:
            method.observe(moments)

    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Tell that the weights were updated."""
        for method in self._following:
            method.after_step(network, global_samples, samples_seen)

    def heard(self, loss: float, samples_seen: int) -> None:
        """Pass the mean training loss on."""
        for method in self._hearing:
            method.heard(loss, samples_seen)

    @contextlib.contextmanager
    def evaluating(self, network: nn.Module, batches: Batches) -> Iterator[None]:
        """Hold the network as it is to be evaluated."""
        with contextlib.ExitStack() as stack:
            for method in self._evaluating:
                stack.enter_context(method.evaluating(network, batches))
            yield

    def state(self) -> dict[str, Any]:
        """Return the state of each method, by name."""
        return {name: method.state() for name, method in self.named}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; the names must be those of this run."""
        assert set(state) == {name for name, _ in self.named}, f"checkpoint of methods {sorted(state)}"
        for name, method in self.named:
            method.restore(state[name])

    def decided(self) -> dict[str, float]:
        """Return what was decided for the latest step, as ``name.value``."""
        return {f"{name}.{key}": value for name, method in self.named for key, value in method.decided().items()}
