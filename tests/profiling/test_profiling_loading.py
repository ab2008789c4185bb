"""What loader workers tell of the batches they make, and that they make the same ones."""

import time

import pytest
import torch
from torch.utils.data import Dataset

from tula_core.engine.batches import BatchStream, Layout
from tula_core.profiling.loading import ClockedData, LoaderClock

LAYOUT = Layout(processes=1, local_batch=4)


class Items(Dataset):
    """Items that are random and take a while."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.tensor([float(index)]) + torch.rand(1), torch.tensor(index)


class Batches(Items):
    """Makes whole batches, the same ones always."""

    deterministic = True

    def get_batch(self, indices):
        return torch.from_numpy(indices).float(), torch.from_numpy(indices)


def taken(data, workers, count):
    steps = BatchStream(data, samples=32, layout=LAYOUT, rank=0, seed=3, workers=workers).from_samples(0)
    return [next(steps).micro_batches[0] for _ in range(count)]


@pytest.mark.parametrize("data", [Items(), Batches()])
def test_the_clock_changes_no_batch(data):
    plain = taken(data, 0, 8)
    clocked = taken(ClockedData(data, None, LoaderClock(1)), 0, 8)
    for (inputs, targets), (same, labels) in zip(plain, clocked, strict=True):
        assert torch.equal(inputs, same) and torch.equal(targets, labels)


def test_a_collate_of_the_job_is_kept():
    def collate(items):
        return torch.stack([item[0] for item in items]) - 1000.0, torch.stack([item[1] for item in items])

    assert float(taken(ClockedData(Items(), collate, LoaderClock(1)), 0, 1)[0][0].max()) < 0


def test_workers_tell_what_a_batch_takes():
    clock = LoaderClock(2)
    taken(ClockedData(Items(), None, clock), 2, 8)
    assert clock.making_s >= 4 * 0.005


def test_the_first_batch_of_a_worker_is_kept_apart():
    clock = LoaderClock(2)
    assert clock.making_s == 0.0
    clock.add(0, 5.0, first=True)
    assert clock.making_s == 5.0
    for worker, seconds in ((1, 0.1), (0, 0.3)):
        clock.add(worker, seconds, first=False)
    assert clock.making_s == pytest.approx(0.2)
