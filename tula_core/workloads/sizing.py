"""Data sets without a length, data sets that are streams, and data sets to be cut: all become sized and indexable."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tula_core.errors import InputError
from tula_core.seeding import derive_seed

_FAR_BEYOND = 10**9
_MOST_ITEMS, _MOST_BYTES = 50_000, 2**30  # to read of a stream that may have no end


class StreamDataset(Dataset[Any]):
    """The first items of a stream, read once, in order, and kept in memory.

    Index-based sampling needs items that can be read again in any order. The stream is read in one process, so the
    items are neither doubled nor dropped by loader workers that each open it.

    Raises
    ------
    InputError
        The stream ends before ``samples`` items.
    """

    def __init__(self, stream: Iterable[Any], samples: int, *, role: str = "train_data", exact: bool = True) -> None:
        if hasattr(stream, "classes"):
            self.classes = stream.classes
        self.items = list(itertools.islice(iter(stream), samples))
        if exact and len(self.items) < samples:
            raise InputError(
                f"samples: {samples} were promised, but the stream {role} ends after {len(self.items)}. "
                f"Set samples to at most {len(self.items)}."
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    @property
    def targets(self) -> torch.Tensor:
        """The targets of all items; no such attribute where they are not pairs with numbers."""
        try:
            return torch.as_tensor([item[1] for item in self.items])
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
            raise AttributeError("targets") from None


class Part(Dataset[Any]):
    """Chosen items of a data set, in the order of ``indices``; passes on ``targets`` and ``classes``."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    @property
    def classes(self) -> Any:
        """The classes of the whole data set."""
        return self.dataset.classes

    @property
    def targets(self) -> torch.Tensor:
        """The targets of the chosen items."""
        return torch.as_tensor(self.dataset.targets)[self.indices]

    @property
    def transform(self) -> Any:
        """The transform of the whole data set."""
        return self.dataset.transform


class BatchedPart(Part):
    """A `Part` of a data set that hands out whole batches."""

    def get_batch(self, indices: Sequence[int]) -> Any:
        """Return the batch of the chosen items at ``indices``."""
        return self.dataset.get_batch([self.indices[index] for index in indices])


def part_of(dataset: Any, indices: Sequence[int]) -> Part:
    """Return the items at ``indices`` as a data set, with whole batches where ``dataset`` has them."""
    return (BatchedPart if hasattr(dataset, "get_batch") else Part)(dataset, indices)


def permutation(length: int, seed: int, purpose: str) -> list[int]:
    """Return the numbers below ``length`` in an order that depends on ``seed`` and ``purpose`` alone."""
    generator = torch.Generator().manual_seed(derive_seed(seed, purpose))
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


def length_of(dataset: Any) -> int | None:
    """Return the length a data set states, None where it states none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def length_note(dataset: Any, role: str) -> str | None:
    """Return a sentence for a data set that was cut or has an item beyond its length, None for any other.

    One that makes an item for any number, however large, has no more items than it says.
    """
    cut = getattr(dataset, "cut", None)
    if cut is not None:
        return str(cut)
    length = len(dataset)
    if not _has_item(dataset, length) or _has_item(dataset, length + _FAR_BEYOND):
        return None
    return f"{role} says that it has {length} items, but there is an item {length} too; only {length} are used."


def _has_item(dataset: Any, index: int) -> bool:
    try:
        dataset[index]
    except Exception:  # whatever it raises, there is no such item
        return False
    return True


def as_sized(dataset: Any, samples: int | None, *, role: str, seed: int = 0) -> Dataset[Any]:
    """Return a data set with a length and indices.

    Parameters
    ----------
    dataset
        Map-style or a stream, with a length or without.
    samples
        A sized training set is cut to the first ``samples`` of a permutation by ``seed``; without a length it is the
        length, of a stream the number of items that are read. An evaluation set is left whole, whatever its length;
        only one without an end in sight is cut to ``samples``, which `length_note` says.
    role
        ``train_data`` or ``eval_data``, for messages.

    Raises
    ------
    InputError
        No length (for evaluation no end) and no ``samples``, ``samples`` larger than the data set, a stream longer than
        it states, or a loader, whose batches have a size of their own.
    """
    if isinstance(dataset, DataLoader):
        raise InputError(
            f"{role}: it is a DataLoader, which hands out batches of {dataset.batch_size} whatever is asked for. "
            "Give the data set in it (its .dataset), and its collate_fn as the workload's collate."
        )
    length = length_of(dataset)
    training = role == "train_data"
    if length is None and samples is None and training:
        raise InputError(
            f"samples: {role} ({type(dataset).__name__}) has no length. "
            "Set samples to the number of items, or give a map-style data set with __len__."
        )
    if training and length is not None and samples is not None and samples > length:
        raise InputError(
            f"samples: {samples} is more than the {length} items of {role}. Set samples to at most {length}."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return _from_stream(dataset, length, samples, role=role)
    if length is None:
        return part_of(dataset, range(samples)) if training and samples is not None else _to_its_end(dataset, samples)
    if training and samples is not None and samples < length:
        return part_of(dataset, permutation(length, seed, "samples")[:samples])
    return dataset  # type: ignore[no-any-return]


def _from_stream(stream: Any, length: int | None, samples: int | None, *, role: str) -> Dataset[Any]:
    if not hasattr(stream, "__iter__"):
        raise InputError(
            f"{role}: {type(stream).__name__} has neither __getitem__ nor __iter__. Give a torch.utils.data.Dataset."
        )
    if length is None and role != "train_data":
        return _read_to_its_end(stream, samples)
    if samples is not None and role == "train_data":
        return StreamDataset(stream, samples, role=role)
    assert length is not None
    opened = StreamDataset(stream, length + 1, role=role, exact=False)
    if len(opened) != length:
        found = "more" if len(opened) > length else str(len(opened))
        raise InputError(
            f"{role}: its length says {length}, but it yields {found} items. Mend __len__"
            + (", or set samples." if role == "train_data" else ".")
        )
    return opened


def _read_to_its_end(stream: Any, samples: int | None) -> Dataset[Any]:
    """Return all of an evaluation stream: a part of it, as of one sorted by class, would be another task."""
    items: list[Any] = []
    read_bytes = 0
    for item in stream:
        if len(items) >= _MOST_ITEMS or (read_bytes > _MOST_BYTES and len(items) >= (samples or 1)):
            return _cut(StreamDataset(items, _few(samples, len(items)), role="eval_data"), len(items))
        items.append(item)
        read_bytes += _bytes_of(item)
    whole = StreamDataset(items, len(items), role="eval_data")
    if hasattr(stream, "classes"):
        whole.classes = stream.classes
    return whole


def _to_its_end(dataset: Any, samples: int | None) -> Dataset[Any]:
    """Return an evaluation set of items without a length up to its last one."""
    if _has_item(dataset, _FAR_BEYOND):
        return _cut(part_of(dataset, range(_few(samples, 0))), _FAR_BEYOND)
    beyond = 1
    while _has_item(dataset, beyond):
        beyond *= 2
    return part_of(dataset, range(bisect.bisect_left(range(beyond), True, key=lambda at: not _has_item(dataset, at))))


def _few(samples: int | None, read: int) -> int:
    if samples is None:
        raise InputError(
            f"eval_data: it has no length, and no end within {read or _FAR_BEYOND:,} items. Give it a __len__, or set "
            "samples to evaluate as many."
        )
    return min(samples, read) if read else samples


def _cut(dataset: Any, beyond: int) -> Dataset[Any]:
    dataset.cut = (
        f"eval_data has no length and no end within {beyond:,} items: only the first {len(dataset):,} are evaluated. "
        "Give it a __len__ to evaluate as many as it says."
    )
    return dataset  # type: ignore[no-any-return]


def _bytes_of(item: Any) -> int:
    if isinstance(item, tuple | list):
        return sum(_bytes_of(part) for part in item)
    return int(getattr(item, "nbytes", 0))
