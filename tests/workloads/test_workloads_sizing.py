import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tula_core.errors import InputError
from tula_core.workloads import DATASETS
from tula_core.workloads.sizing import StreamDataset, as_sized, part_of


class Stream(IterableDataset):
    def __init__(self, items, length=None):
        self.items = items
        self.length = length
        self.opened = 0

    def __iter__(self):
        self.opened += 1
        return iter(range(self.items))


class StreamWithLength(Stream):
    def __len__(self):
        return self.length


class NoLength(Dataset):
    def __getitem__(self, index):
        return torch.ones(2) * index, index % 2


def test_a_stream_without_length_asks_for_samples():
    with pytest.raises(InputError, match=r"samples: train_data \(Stream\) has no length. Set samples"):
        as_sized(Stream(10), None, role="train_data")


def test_a_stream_is_read_once_and_then_takes_any_index():
    stream = Stream(10)
    opened = as_sized(stream, 6, role="train_data")
    assert [opened[i] for i in (5, 0, 3)] == [5, 0, 3]
    assert (len(opened), stream.opened) == (6, 1)


def test_a_stream_that_ends_early_says_how_many_there_were():
    with pytest.raises(InputError, match="samples: 11 were promised, but the stream train_data ends after 10"):
        as_sized(Stream(10), 11, role="train_data")


def test_an_evaluation_stream_may_end_before_the_training_samples_do():
    assert len(as_sized(Stream(10), 50, role="eval_data")) == 10


@pytest.mark.parametrize(("stated", "found"), [(1, "more"), (12, "10")])
def test_a_stream_whose_length_lies_is_refused(stated, found):
    with pytest.raises(InputError, match=f"length says {stated}, but it yields {found} items"):
        as_sized(StreamWithLength(10, stated), None, role="train_data")


def test_a_stream_with_a_true_length_needs_no_samples():
    assert len(as_sized(StreamWithLength(10, 10), None, role="train_data")) == 10


def test_map_style_without_length_takes_samples_as_its_length():
    opened = as_sized(NoLength(), 7, role="train_data")
    assert len(opened) == 7
    assert opened[6][1] == 0


def test_a_cut_keeps_targets_and_batches_in_step_and_depends_on_the_seed_alone():
    digits = DATASETS["digits"].make(True)
    first, again, other = (as_sized(digits, 100, role="train_data", seed=seed) for seed in (3, 3, 4))
    assert first.indices == again.indices != other.indices
    images, targets = first.get_batch([5, 0])
    assert torch.equal(images[0], digits[first.indices[5]][0])
    assert targets.tolist() == [int(first.targets[5]), int(first.targets[0])]
    assert first.classes == digits.classes
    assert len(set(first.indices)) == 100


def test_a_cut_above_the_size_is_refused_and_an_evaluation_set_is_never_cut():
    data = TensorDataset(torch.zeros(10, 1), torch.zeros(10))
    with pytest.raises(InputError, match="samples: 11 is more than the 10 items"):
        as_sized(data, 11, role="train_data")
    assert as_sized(data, 5, role="eval_data") is data
    assert as_sized(data, 50, role="eval_data") is data


def test_parts_have_batches_only_where_the_whole_has():
    assert not hasattr(part_of(NoLength(), range(3)), "get_batch")
    assert not hasattr(part_of(NoLength(), range(3)), "targets")
    assert hasattr(part_of(DATASETS["digits"].make(False), range(3)), "get_batch")


def test_something_that_is_no_data_set_is_refused():
    with pytest.raises(InputError, match="neither __getitem__ nor __iter__"):
        as_sized(object(), 3, role="train_data")
    assert len(StreamDataset(iter("abc"), 3)) == 3
