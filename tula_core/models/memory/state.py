"""What a process holds whatever its batch: parameters, gradients, optimizer state; known before any measurement."""

from __future__ import annotations

from dataclasses import dataclass

from tula_core.job import Recipe
from tula_core.records.profile import WorkloadFacts

_FLOAT_BYTES = 4
_HALF_BYTES = 2
_SLOTS = {"adam": 2, "adamw": 2}  # numbers kept for each gradient; momentum of SGD is one


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Bytes of parameters, gradients and optimizer state of one process, and of what autocast adds."""

    parameters: float
    gradients: float
    optimizer: float
    casts: float

    @property
    def beyond_parameters(self) -> float:
        """What the first step adds for good to a network that is already in memory."""
        return self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All that has to be there."""
        return self.parameters + self.gradients + self.optimizer


def optimizer_slots(recipe: Recipe) -> int:
    """Return the numbers that the recipe's optimizer keeps for each gradient: 0, 1 with momentum, 2 for Adam."""
    return _SLOTS.get(recipe.optimizer, 1 if recipe.momentum > 0 else 0)


def state_bytes(facts: WorkloadFacts, recipe: Recipe) -> StateBytes:
    """Return the state of mixed-precision data parallelism: P (4 + 4 + 4 k), and 2 P of casts under autocast.

    k is 0 for plain SGD, 1 with momentum, 2 for Adam: Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1, with
    the parameters themselves in fp32, as autocast keeps them. Frozen parameters have neither gradient nor state.
    """
    trainable = facts.gradient_bytes / _FLOAT_BYTES
    return StateBytes(
        parameters=float(facts.gradient_bytes) + _FLOAT_BYTES * max(facts.parameters - trainable, 0.0),
        gradients=float(facts.gradient_bytes),
        optimizer=float(optimizer_slots(recipe) * facts.gradient_bytes),
        casts=float(_HALF_BYTES * facts.parameters),
    )
