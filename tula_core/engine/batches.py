"""Which samples go into which step on which process, as pure functions of seed, epoch and position.

An epoch's order is one permutation; a step takes the next window of it, each process a near-equal part of the window,
in near-equal micro-batches. Every sample is used once per epoch whatever the batch size and the number of processes,
so a run can stop at any step and go on elsewhere.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from tula_core.errors import InputError
from tula_core.seeding import derive_seed, fold

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a global batch is spread: processes x local batch x accumulation samples."""

    processes: int
    local_batch: int
    accumulation: int = 1

    @property
    def global_batch(self) -> int:
        """Samples in one full step."""
        return self.processes * self.local_batch * self.accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step on one process.

    Attributes
    ----------
    micro_batches
        Pairs of inputs and targets; each process has at least one, sizes may differ by one sample.
    sizes
        Samples in each micro-batch.
    global_samples
        Samples in the step over all processes; the loss is the mean over these.
    samples_before, samples_after
        Training samples seen before and after the step, over all epochs.
    ends_epoch
        Whether this is the epoch's last step.
    """

    micro_batches: Sequence[tuple[Any, Any]]
    sizes: tuple[int, ...]
    global_samples: int
    samples_before: int
    samples_after: int
    ends_epoch: bool


def size_of(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a data set that has a length, as a loaded workload's have."""
    assert isinstance(dataset, Sized)
    return len(dataset)


def step_sizes(samples: int, layout: Layout) -> list[int]:
    """Return the samples of each step of one epoch; they sum to ``samples``, none exceeds the global batch.

    The tail is a step of its own. Where it is too small to give each process two samples (batch norm needs them),
    the last two steps share theirs evenly instead, so no sample is dropped and no step is larger than planned.

    Raises
    ------
    InputError
        There are fewer samples than one global batch.
    """
    batch = layout.global_batch
    if samples < batch:
        raise InputError(
            f"global batch: {batch} samples is more than the training set's {samples}. "
            f"Choose nodes x processes x local batch x accumulation of at most {samples}."
        )
    full, tail = divmod(samples, batch)
    sizes = [batch] * full
    if tail:
        sizes.append(tail)
        if tail < 2 * layout.processes and (sizes[-2] + tail) // 2 >= tail:
            both = sizes[-2] + tail
            sizes[-2:] = [both - both // 2, both // 2]
    return sizes


def split(total: int, parts: int) -> list[int]:
    """Return ``parts`` sizes that sum to ``total`` and differ by at most one, larger ones first."""
    base, extra = divmod(total, parts)
    return [base + (index < extra) for index in range(parts)]


def micro_batch_sizes(step_samples: int, layout: Layout, rank: int) -> list[int]:
    """Return the micro-batch sizes of ``rank`` in a step; none exceeds the local batch.

    Raises
    ------
    InputError
        The step has fewer samples than processes, so a process would have none.
    """
    if step_samples < layout.processes:
        raise InputError(
            f"local batch: a step of {step_samples} samples leaves some of {layout.processes} processes without any. "
            "Use fewer processes or another batch size."
        )
    own = split(step_samples, layout.processes)[rank]
    return split(own, -(-own // layout.local_batch))


def epoch_order(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the order of the samples in an epoch, shape ``(samples,)``."""
    return np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(samples)


@dataclass(frozen=True, slots=True)
class Pick:
    """What one micro-batch is made of: sample numbers, and the seed of their random transforms."""

    indices: NDArray[np.int64]
    seed: int


class BatchSource(Dataset[Any]):
    """Turns a `Pick` into a batch, in this process or in a loader worker, with the same result.

    Items may be random: python's, numpy's and torch's generators are set to the pick's seed first, unless the data set
    says that it is ``deterministic``.
    """

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._get_batch = getattr(dataset, "get_batch", None) if collate is None else None
        self._deterministic = bool(getattr(dataset, "deterministic", False)) and self._get_batch is not None

    def __getitem__(self, pick: Pick) -> Any:
        if not self._deterministic:
            random.seed(pick.seed)
            np.random.seed(pick.seed % 2**32)
            torch.default_generator.manual_seed(pick.seed)  # torch.manual_seed walks the stack for each device kind
        if self._get_batch is not None:
            return self._get_batch(pick.indices)
        return self._collate([self._dataset[index] for index in pick.indices.tolist()])


class BatchStream:
    """The steps of one process, from any position on.

    Parameters
    ----------
    dataset
        Map-style; where it has ``get_batch(indices)`` that is used, with an int64 array, instead of one item at a time.
    samples
        Size of the data set.
    layout, rank, seed
        See `Layout`; ``seed`` fixes the order and the random transforms.
    workers
        Loader processes; 0 loads in this process.
    collate
        Makes a batch of items; torch's default where None.
    whole_steps
        Leave out what an epoch has beyond its last full global batch; for measuring.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        samples: int,
        layout: Layout,
        rank: int,
        seed: int,
        workers: int = 0,
        collate: Collate | None = None,
        pin_memory: bool = False,
        whole_steps: bool = False,
    ) -> None:
        self._source = BatchSource(dataset, collate)
        self._samples = samples
        self._layout = layout
        self._rank = rank
        self._seed = seed
        self._workers = workers
        self._pin_memory = pin_memory
        full = samples // layout.global_batch
        self._sizes = [layout.global_batch] * full if whole_steps and full else step_sizes(samples, layout)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._epoch_samples = int(self._starts[-1])
        self._transform_seed = derive_seed(seed, "transform")
        self._shares = {size: self._share(size) for size in set(self._sizes)}

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the data."""
        return len(self._sizes)

    def from_samples(self, samples_seen: int) -> Iterator[Step]:
        """Yield steps for ever, beginning after ``samples_seen`` training samples.

        Raises
        ------
        InputError
            ``samples_seen`` is not at the border between two steps of this layout.
        """
        epoch, position = divmod(samples_seen, self._epoch_samples)
        first = int(np.searchsorted(self._starts, position))
        if self._starts[first] != position:
            raise InputError(
                f"resume: {samples_seen} samples is not between two steps of a global batch of "
                f"{self._layout.global_batch}. Resume with the batch size of the checkpoint."
            )
        plans, ahead = itertools.tee(self._plans(epoch, first))
        # One loader for all epochs: its workers start once, and load on while an epoch is evaluated.
        batches = self._load(pick for _, _, picks in ahead for pick in picks)
        for epoch, number, picks in plans:
            before = epoch * self._epoch_samples + int(self._starts[number])
            yield Step(
                micro_batches=[next(batches) for _ in picks],
                sizes=tuple(len(pick.indices) for pick in picks),
                global_samples=self._sizes[number],
                samples_before=before,
                samples_after=before + self._sizes[number],
                ends_epoch=number == len(self._sizes) - 1,
            )

    def _plans(self, epoch: int, first: int) -> Iterator[tuple[int, int, list[Pick]]]:
        """Yield epoch, number in it and picks of every step from one on, for ever."""
        while True:
            order = epoch_order(self._seed, epoch, self._samples)
            for number in range(first, len(self._sizes)):
                yield epoch, number, self._picks(order, epoch, number)
            epoch, first = epoch + 1, 0

    def _picks(self, order: NDArray[np.int64], epoch: int, number: int) -> list[Pick]:
        start = int(self._starts[number])
        return [
            Pick(order[start + begin : start + end], fold(self._transform_seed, epoch, start + begin))
            for begin, end in self._shares[self._sizes[number]]
        ]

    def _share(self, size: int) -> list[tuple[int, int]]:
        """Return where this process's micro-batches begin and end in a step of ``size`` samples."""
        counts = micro_batch_sizes(size, self._layout, self._rank)
        ends = np.cumsum([sum(split(size, self._layout.processes)[: self._rank]), *counts]).tolist()
        return list(itertools.pairwise(ends))

    def _load(self, picks: Iterator[Pick]) -> Iterator[Any]:
        if self._workers == 0:
            return (self._source[pick] for pick in picks)
        loader: DataLoader[Any] = DataLoader(
            self._source,
            sampler=picks,
            batch_size=None,
            num_workers=self._workers,
            pin_memory=self._pin_memory,
            collate_fn=_as_is,
        )
        return iter(loader)


def _as_is(batch: Any) -> Any:
    return batch
