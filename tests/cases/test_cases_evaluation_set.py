"""An evaluation set is whole: elsewhere the size asked for in training cuts a stream of held-out samples too.

The first samples of a stream that is sorted by class are of one class, so that every network is right.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from case_workloads import workload
from tiny_workloads import blobs
from torch.utils.data import Dataset, IterableDataset

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.records import WorkloadFacts
from tula_core.workloads import sizing
from tula_core.workloads.describe import describe


class HeldOut(IterableDataset[Any]):
    """A stream of 500 items, by class, or of no end; no length."""

    def __init__(self, endless: bool = False) -> None:
        self.inputs, self.labels = blobs(500, 2).tensors
        self.order = self.labels.argsort(stable=True).tolist()
        self.endless = endless

    def __iter__(self) -> Iterator[Any]:
        order = itertools.cycle(self.order) if self.endless else self.order
        return ((self.inputs[index], self.labels[index]) for index in order)


class Numbers(Dataset[Any]):
    """Items by number without a length: 500 of them, or one for every number."""

    def __init__(self, endless: bool = False) -> None:
        self.data, self.endless = blobs(500, 2), endless

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 500 if self.endless else index]


def facts(data: Any, samples: int | None = 100) -> WorkloadFacts:
    made = dataclasses.replace(workload(), eval_data=data, samples=samples)
    return describe(made, Job(workload="case_workloads:plain"))


@pytest.mark.parametrize("data", [HeldOut(), Numbers()], ids=["stream", "items"])
@pytest.mark.parametrize("samples", [100, 1000, None])
def test_held_out_data_without_a_length_are_read_to_their_end(data: Any, samples: int | None) -> None:
    """Whatever the size of the training set is cut to."""
    found = facts(data, samples)
    assert found.eval_samples == 500
    assert found.chance in (None, pytest.approx(167 / 500))  # unknown where labels are not at hand
    assert found.notes == ()


@pytest.mark.parametrize("data", [HeldOut(endless=True), Numbers(endless=True)], ids=["stream", "items"])
def test_held_out_data_without_an_end_are_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    """A plan for a part of them says that it is one."""
    monkeypatch.setattr(sizing, "_MOST_ITEMS", 2000)
    found = facts(data)
    assert found.eval_samples == 100
    assert any("only the first 100 are evaluated" in note for note in found.notes)
    with pytest.raises(InputError, match="eval_data: it has no length, and no end within .* items. Give it a __len__"):
        facts(data, samples=None)


def test_a_stream_too_large_to_keep_is_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is held in memory."""
    monkeypatch.setattr(sizing, "_MOST_BYTES", 300 * (6 * 4 + 8))
    found = facts(HeldOut(), samples=200)
    assert found.eval_samples == 200
    assert any("no end within 301 items: only the first 200" in note for note in found.notes)
