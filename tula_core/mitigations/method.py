"""`Method`: what a mitigation may do at each moment of a run. Every hook here leaves the run as it is.

A method is a pure function and a thin hook: the equation stands in a function of its own, the hook calls it and keeps
the little state it needs. The loop calls, in this order:

1. ``network`` and ``optimizer`` once, before the data-parallel wrapper is put around the network;
2. at each step ``clock`` and ``rate``, then ``loss_weights``, and for each micro-batch, as often as ``copies`` says,
   ``augment`` and ``prepare``; after the backward passes ``perturb`` and, with a second pass, ``unperturb``; then
   ``observe`` where moments were measured; after an update that was made ``after_step``. A step that mixed precision
   skips moves nothing;
3. ``heard`` whenever the processes agree on the mean training loss;
4. ``evaluating`` around each evaluation;
5. ``state`` and ``restore`` with each checkpoint.

Decisions are functions of values that all processes share (the setting, samples seen, averaged moments, agreed losses),
so the processes never part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tula_core.job import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Batches = Callable[[], Iterator[tuple[Any, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a method is told before training.

    Attributes
    ----------
    recipe
        Resolved; its learning rate belongs to its batch size, the reference batch.
    processes, rank, local_batch, accumulation
        The layout of a step; ``accumulation`` micro-batches of ``local_batch`` samples on each process.
    train_samples, total_samples
        Size of the training set, and samples of the whole run.
    seed
        Of the job.
    options
        The method's own hyperparameters, complete: its card's defaults, overridden by the job's.
    planned_batch
        Global batch that the run comes to where the processes at hand are those of an earlier stage; None where their
        own is the one.
    """

    recipe: Recipe
    processes: int
    rank: int
    local_batch: int
    accumulation: int
    train_samples: int
    total_samples: int
    seed: int
    options: Mapping[str, float] = field(default_factory=dict)
    planned_batch: int | None = None

    @property
    def global_batch(self) -> int:
        """Samples in one full step, the largest of the run."""
        return self.planned_batch or self.processes * self.local_batch * self.accumulation

    @property
    def scale(self) -> float:
        """Global batch over reference batch, B/B0."""
        return self.global_batch / self.recipe.batch_size

    @property
    def groups(self) -> int:
        """Independent groups of samples in a full step: micro-batches of all processes."""
        return self.processes * self.accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientMoments:
    """Unbiased estimates from one step; see `tula_core.engine.noise_meter`. Both may be negative when noisy."""

    squared_gradient: float  # ||G||^2
    trace_covariance: float  # tr(Sigma), per sample
    global_samples: int


class Method:
    """Base of all methods: does nothing at any moment.

    Parameters
    ----------
    setting
        The run at hand.
    """

    needs_moments: ClassVar[bool] = False
    """Whether `observe` is to be called; measuring costs one pass over the gradient."""
    second_pass: ClassVar[bool] = False
    """Whether the gradient is taken again after `perturb`."""
    steps_alone: ClassVar[bool] = False
    """Whether each process makes updates of its own within a step, which `after_step` brings together."""
    sets_rate: ClassVar[bool] = False
    """Whether `rate` takes no heed of the planned rate; it is then asked before those that change the rate."""
    own_state: ClassVar[bool] = False
    """Whether each process has a state of its own; then a checkpoint holds all of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def network(self, network: nn.Module) -> nn.Module:
        """Return the network to train, made over or as it is."""
        return network

    def optimizer(self, network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer | None:
        """Return the optimizer to use, None for the recipe's own."""
        return None

    def distributed(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take the network as it is wrapped for several processes, and the optimizer; called once, before training."""

    @property
    def at_rest(self) -> bool:
        """Whether all processes hold the same weights, so that a checkpoint speaks for all."""
        return True

    @property
    def apart(self) -> bool:
        """Whether the gradients of the coming update are this process's own and no mean over processes."""
        return False

    def next_batch(self, current: int) -> int:
        """Return the global batch to go on with; asked where an epoch ends."""
        return current

    @property
    def shares(self) -> Sequence[tuple[float, int]] | None:
        """The weight of each process among a step's samples and the samples in each of its updates; None for equal."""
        return None

    def updates(self, sizes: Sequence[int]) -> Sequence[range]:
        """Return which micro-batches make up each update of this process; called where ``steps_alone``."""
        return [range(len(sizes))]

    def begin_alone(self, network: nn.Module) -> None:
        """Prepare for the updates of one step; called where ``steps_alone``."""

    def after_alone(self, network: nn.Module) -> None:
        """Follow each update of this process but the last of the step; called where ``steps_alone``."""

    def clock(self, samples_seen: float) -> float:
        """Return the position of the learning-rate schedule, in samples."""
        return samples_seen

    def rate(self, planned: float, samples_seen: int) -> float:
        """Return the learning rate of the next step, given the planned one.

        Neither counts the reductions after a divergence: the loop lowers what all methods have made of the rate.
        """
        return planned

    def peaks(self, least: float, most: float) -> tuple[float, float]:
        """Return between which rates the highest of the run will be, given those of the plan; alike where known."""
        return least, most

    @property
    def copies(self) -> int:
        """How often each micro-batch is passed through the network; its gradient is the mean over these copies."""
        return 1

    def augment(self, inputs: Any, first: int, copy: int) -> Any:
        """Return one copy of a micro-batch's inputs; ``first`` is the place of its first sample in the whole run."""
        return inputs

    def prepare(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        """Return the inputs and targets of a micro-batch; ``seed`` is that of the step on this process."""
        return inputs, targets

    def loss_weights(self, micro_batches: int, seed: int) -> Sequence[float] | None:
        """Return a weight for the loss of each micro-batch of this process; ``seed`` is the same on all processes."""
        return None

    def perturb(self, network: nn.Module) -> None:
        """Move the weights, with this process's own gradients at hand; called where ``second_pass``."""

    def unperturb(self, network: nn.Module) -> None:
        """Put the weights back exactly, with the gradients of the second pass at hand."""

    def observe(self, moments: GradientMoments) -> None:
        """Take the moments of the gradient of a step; called where ``needs_moments``."""

    def after_step(self, network: nn.Module, global_samples: int, samples_seen: int) -> None:
        """Follow an update of the weights, made with ``global_samples`` samples."""

    def heard(self, loss: float, samples_seen: int) -> None:
        """Take the mean training loss since the last time, the same on all processes."""

    @contextlib.contextmanager
    def evaluating(self, network: nn.Module, batches: Batches) -> Iterator[None]:
        """Hold the network as it is to be evaluated; ``batches`` gives training batches on the device."""
        yield

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain values and tensors."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""

    def decided(self) -> dict[str, float]:
        """Return what was decided for the latest step, by name, to be recorded."""
        return {}


def overrides(method: Method, hook: str) -> bool:
    """Return whether a method does something at a hook, so that the loop calls only those that do."""
    return getattr(type(method), hook) is not getattr(Method, hook)


def own(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies that later changes in place do not reach."""
    return [tensor.detach().clone() for tensor in tensors]
