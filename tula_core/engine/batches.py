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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from tula_core.engine.shares import (
    Layout,
    Part,
    is_small_rest,
    micro_batch_sizes,
    own_samples,
    repeats,
    rest_parts,
    split,
    step_sizes,
    window_sizes,
)
from tula_core.errors import InputError
from tula_core.seeding import derive_seed, fold

__all__ = [
    "BatchSource",
    "BatchStream",
    "Layout",
    "Pick",
    "Step",
    "epoch_order",
    "micro_batch_sizes",
    "size_of",
    "split",
    "step_sizes",
]

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step on one process.

    Attributes
    ----------
    micro_batches
        Pairs of inputs and targets; each process has at least one, sizes may differ by one sample.
    sizes
        Samples that each micro-batch counts for: those in it, but in a small rest of an epoch, see `rest_parts`.
    starts
        The place of each micro-batch's first sample in the run: training samples before it, over all epochs. The same
        sample of an epoch has the same place however the step is spread.
    global_samples
        Samples in the step over all processes; the loss is the mean over these.
    samples_before, samples_after
        Training samples seen before and after the step, over all epochs.
    ends_epoch
        Whether this is the epoch's last step.
    """

    micro_batches: Sequence[tuple[Any, Any]]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    global_samples: int
    samples_before: int
    samples_after: int
    ends_epoch: bool


def size_of(dataset: Dataset[Any]) -> int:
    """Return the number of samples of a data set that has a length, as a loaded workload's have."""
    assert isinstance(dataset, Sized)
    return len(dataset)


def epoch_order(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the order of the samples in an epoch, shape ``(samples,)``."""
    return np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(samples)


class Pick(NamedTuple):
    """What one micro-batch is made of: sample numbers, and the seed of their random transforms."""

    indices: NDArray[np.int64]
    seed: int


class _Window(NamedTuple):
    """What one step takes of an epoch's order; made at each step, where a dataclass would take three times as long."""

    samples: int
    samples_before: int
    ends_epoch: bool
    picks: list[Pick]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]


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
            batch = self._get_batch(pick.indices)
        else:
            batch = self._collate([self._dataset[index] for index in pick.indices.tolist()])
        _require_count(batch, len(pick.indices))
        return batch


def _require_count(batch: Any, asked: int) -> None:
    """Refuse a batch of another size than asked for: its loss would be weighted, and its step timed, as that size."""
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    for part in parts:
        if isinstance(part, torch.Tensor) and part.ndim and len(part) != asked:
            raise InputError(
                f"data: a batch of {asked} samples was asked for and one of {len(part)} came. "
                "Let the data set hand out single items, and get_batch or collate as many as they are given."
            )


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

        Where that is within a step of this layout, as after a run with another batch size, the rest of the epoch is
        taken in steps of its own: every sample still counts once per epoch, see `rest_parts` for few of them.
        """
        windows = self._windows(*divmod(samples_seen, self._epoch_samples))
        if self._workers:
            windows, ahead = itertools.tee(windows)
            # One loader for all epochs: its workers start once, and load on while an epoch is evaluated.
            batches = self._load(pick for window in ahead for pick in window.picks)
            for window in windows:
                yield _step(window, [next(batches) for _ in window.picks])
        # Nothing here holds on to a step: its batches are free for the next one, still warm in the caches.
        for window in windows:
            yield _step(window, [self._source[pick] for pick in window.picks])

    def _windows(self, epoch: int, position: int) -> Iterator[_Window]:
        """Yield the window of every step from ``position`` of ``epoch`` on, for ever."""
        sizes, shares = self._sizes_from(position)
        while True:
            order = epoch_order(self._seed, epoch, self._samples)
            for number, size in enumerate(sizes):
                before = epoch * self._epoch_samples + position
                yield _Window(
                    samples=size,
                    samples_before=before,
                    ends_epoch=number == len(sizes) - 1,
                    picks=[self._pick(order, epoch, position, part) for part in shares[size]],
                    sizes=tuple([part.counted for part in shares[size]]),
                    starts=tuple([before + part.begin for part in shares[size]]),
                )
                position += size
            epoch, position, sizes, shares = epoch + 1, 0, self._sizes, self._shares

    def _sizes_from(self, position: int) -> tuple[list[int], dict[int, list[Part]]]:
        """Return the sizes of the steps up to the end of the epoch, and how each size is shared out."""
        first = int(np.searchsorted(self._starts, position))
        if self._starts[first] == position:
            return self._sizes[first:], self._shares
        sizes = window_sizes(self._epoch_samples - position, self._layout)
        return sizes, {size: self._share(size, rest=True) for size in set(sizes)}

    def _pick(self, order: NDArray[np.int64], epoch: int, start: int, part: Part) -> Pick:
        indices = order[start + part.begin : start + part.end]
        seed = fold(self._transform_seed, epoch, start + part.begin)
        return Pick(indices if part.repeats == 1 else np.repeat(indices, part.repeats), seed)

    def _share(self, size: int, *, rest: bool = False) -> list[Part]:
        """Return this process's micro-batches in a step of ``size`` samples, ``rest`` for the end of an epoch begun."""
        if rest and is_small_rest(size, self._layout):
            return rest_parts(size, self._layout, self._rank)
        counts = micro_batch_sizes(size, self._layout, self._rank)
        ends = np.cumsum([sum(own_samples(size, self._layout)[: self._rank]), *counts]).tolist()
        pairs = [repeats(count, self._layout) if rest else 1 for count in counts]
        return [Part(a, b, b - a, pair) for (a, b), pair in zip(itertools.pairwise(ends), pairs, strict=True)]

    def _load(self, picks: Iterator[Pick]) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            self._source,
            sampler=picks,
            batch_size=None,
            num_workers=self._workers,
            pin_memory=self._pin_memory,
            collate_fn=_as_is,
        )
        return iter(loader)


def _step(window: _Window, micro_batches: list[Any]) -> Step:
    return Step(
        micro_batches=micro_batches,
        sizes=window.sizes,
        starts=window.starts,
        global_samples=window.samples,
        samples_before=window.samples_before,
        samples_after=window.samples_before + window.samples,
        ends_epoch=window.ends_epoch,
    )


def _as_is(batch: Any) -> Any:
    return batch
