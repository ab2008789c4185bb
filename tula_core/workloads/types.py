"""`Workload`, what is trained: a network factory, data sets, a loss, a metric and the reference recipe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.utils.data import Dataset

from tula_core.job import Recipe, Target
from tula_core.seeding import derive_seed
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.sizing import as_sized

Loss = Callable[[Tensor, Tensor], Tensor]
Collate = Callable[[list[Any]], Any]
Data = Dataset[Any] | Callable[[], Dataset[Any]]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure of merit that adds up exactly over batches and shards: total sum divided by total count.

    Attributes
    ----------
    name
        What a job's ``target.metric`` calls it.
    higher_is_better
        The direction of improvement.
    ceiling
        The best value it can take, None where unknown.
    compute
        ``(output, target) -> (sum, count)`` of one batch.
    """

    name: str
    higher_is_better: bool
    ceiling: float | None
    compute: Callable[[Tensor, Tensor], tuple[float, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry(Generic[T]):
    """A registry entry: how to make the thing, and one line about it."""

    description: str
    make: T


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained.

    Attributes
    ----------
    network
        Builds a new network each time it is called.
    train_data, eval_data
        A data set of ``(input, target)`` items, or a function that opens one. A data set may have
        ``get_batch(indices)``, which returns the tensors of a whole batch and replaces item access and collation.
    loss
        ``(output, target) -> scalar``, the mean over the batch. One that is a mean over something else than samples,
        as with labels that are left out or weighted, is a `tula_core.workloads.WeightedLoss`; torch's own are known.
    recipe, target
        The reference recipe and the metric's value to reach; a job's own fields go before them.
    samples
        Number of training samples: the length where the data set has none, else the size to cut it to.
    sample_seed
        Chooses which samples a cut keeps.
    data_seed
        Seeds the generators of Python, numpy and torch while a data set is opened; a loaded job gives its own seed.
    collate
        Makes a batch of a list of items; None for PyTorch's default.
    notes
        What was assumed while loading, each one sentence for a person.
    """

    name: str
    network: Callable[[], nn.Module]
    train_data: Data
    eval_data: Data
    loss: Loss
    metric: Metric
    recipe: Recipe = Recipe()
    target: Target | None = None
    samples: int | None = None
    sample_seed: int = 0
    data_seed: int = 0
    collate: Collate | None = None
    notes: tuple[str, ...] = ()
    _opened: dict[str, Dataset[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def train_set(self) -> Dataset[Any]:
        """Return the training set, opened once; it has a length and takes any index.

        Raises
        ------
        InputError
            It has no length and ``samples`` is not given, or fewer items than ``samples``, or it cannot be opened.
        """
        if "train" not in self._opened:
            with self._same_randomness():
                opened = _open(self.train_data)
                self._opened["train"] = as_sized(opened, self.samples, role="train_data", seed=self.sample_seed)
        return self._opened["train"]

    def eval_set(self) -> Dataset[Any]:
        """Return the evaluation set, opened once; it has a length and takes any index.

        A stream without a length is read to its end, however many training ``samples`` there are.

        Raises
        ------
        InputError
            It has neither a length nor an end that is known, or cannot be opened.
        """
        if "eval" not in self._opened:
            with self._same_randomness():
                self._opened["eval"] = as_sized(_open(self.eval_data), self.samples, role="eval_data")
        return self._opened["eval"]

    def _same_randomness(self) -> AbstractContextManager[None]:
        """Return the context for opening data: every process and attempt has to open the same, in the same order.

        Training and evaluation data get one seed, for each may be a part of one random split.
        """
        return fixed_randomness(derive_seed(self.data_seed, "data"))


def _open(data: Data) -> Dataset[Any]:
    if hasattr(data, "__getitem__") or hasattr(data, "__iter__") or not callable(data):
        return data  # type: ignore[return-value]
    return data()
