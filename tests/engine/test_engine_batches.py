import itertools
import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.engine.batches import BatchStream, Layout, Step, epoch_order, micro_batch_sizes, split, step_sizes
from tula_core.engine.shares import smallest_micro_batch, tail_is_shared
from tula_core.errors import InputError

LAYOUTS = st.builds(Layout, processes=st.integers(1, 5), local_batch=st.integers(1, 40), accumulation=st.integers(1, 4))


class Numbers:
    """A data set whose items are their own numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


def stream(samples: int, layout: Layout, rank: int = 0) -> BatchStream:
    return BatchStream(Numbers(samples), samples=samples, layout=layout, rank=rank, seed=5)


def one_epoch(steps: Iterator[Step]) -> list[Step]:
    taken = []
    for step in steps:
        taken.append(step)
        if step.ends_epoch:
            break
    return taken


@given(layout=LAYOUTS, samples=st.integers(1, 2000))
def test_steps_use_every_sample_and_never_exceed_the_batch(layout: Layout, samples: int) -> None:
    if samples < layout.global_batch:
        with pytest.raises(InputError, match="more than the training set"):
            step_sizes(samples, layout)
        return
    sizes = step_sizes(samples, layout)
    assert sum(sizes) == samples
    assert max(sizes) <= layout.global_batch
    assert len(sizes) == -(-samples // layout.global_batch)


@pytest.mark.parametrize("batch", [64, 128, 256])
def test_a_tail_of_one_sample_is_shared_with_the_step_before(batch: int) -> None:
    sizes = step_sizes(257, Layout(processes=1, local_batch=batch))
    assert sum(sizes) == 257
    assert min(sizes) >= 2


@given(layout=LAYOUTS, step=st.integers(1, 800), data=st.data())
def test_micro_batches_cover_a_step_and_fit_the_local_batch(layout: Layout, step: int, data: st.DataObject) -> None:
    step = min(step, layout.global_batch)
    if step < layout.processes:
        with pytest.raises(InputError, match="leaves some of"):
            micro_batch_sizes(step, layout, 0)
        return
    shares = [micro_batch_sizes(step, layout, rank) for rank in range(layout.processes)]
    assert sum(sum(share) for share in shares) == step
    assert all(1 <= size <= layout.local_batch for share in shares for size in share)
    assert all(len(share) <= layout.accumulation for share in shares)


@settings(max_examples=25, deadline=None)
@given(
    layout=st.builds(
        Layout, processes=st.integers(1, 3), local_batch=st.integers(2, 9), accumulation=st.integers(1, 3)
    ),
    samples=st.integers(90, 140),
)
def test_every_sample_once_per_epoch_whatever_the_layout(layout: Layout, samples: int) -> None:
    seen = []
    for rank in range(layout.processes):
        for step in one_epoch(stream(samples, layout, rank).from_samples(0)):
            for inputs, targets in step.micro_batches:
                assert inputs.equal(targets)
                seen += inputs.tolist()
    assert sorted(seen) == list(range(samples))


def test_a_stream_goes_on_where_another_stopped() -> None:
    layout = Layout(processes=2, local_batch=8, accumulation=2)
    whole = [step for _, step in zip(range(7), stream(100, layout).from_samples(0), strict=False)]
    rest = stream(100, layout).from_samples(whole[2].samples_after)
    for expected, step in zip(whole[3:], rest, strict=False):
        assert step.samples_before == expected.samples_before
        for (left, _), (right, _) in zip(step.micro_batches, expected.micro_batches, strict=True):
            assert left.equal(right)


@settings(max_examples=25, deadline=None)
@given(
    before=st.builds(
        Layout, processes=st.integers(1, 3), local_batch=st.integers(2, 9), accumulation=st.integers(1, 2)
    ),
    after=st.builds(Layout, processes=st.integers(1, 3), local_batch=st.integers(2, 9), accumulation=st.integers(1, 2)),
    steps=st.integers(1, 6),
)
def test_another_layout_takes_the_rest_of_the_epoch(before: Layout, after: Layout, steps: int) -> None:
    taken = list(itertools.islice(stream(61, before).from_samples(0), steps))
    seen, position = order_of(before, 0, taken[-1].samples_after, 61), taken[-1].samples_after
    end = -(-position // 61) * 61
    weights = Counter(seen) + counted_of(after, position, end, 61)
    assert {number: round(weight, 9) for number, weight in weights.items()} == dict.fromkeys(range(61), end // 61)


@pytest.mark.parametrize("samples", [257, 258, 259, 500])
@pytest.mark.parametrize("first", [(1, 64), (1, 128), (2, 64), (1, 256)])
@pytest.mark.parametrize("second", [(1, 32), (2, 32), (3, 64), (4, 16), (3, 8)])
def test_a_rest_leaves_no_process_with_one_sample(
    samples: int, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Elsewhere a run that goes on elsewhere gives a process a single sample, and batch norm refuses it."""
    before, after = (Layout(processes=processes, local_batch=local) for processes, local in (first, second))
    for position in itertools.accumulate(step_sizes(samples, before)):
        for rank in range(after.processes):
            for step in itertools.takewhile(
                lambda step: step.samples_before < samples, stream(samples, after, rank).from_samples(position)
            ):
                assert min(len(inputs) for inputs, _ in step.micro_batches) >= 2
                assert max(len(inputs) for inputs, _ in step.micro_batches) <= after.local_batch
                # What methods measure only where shares are equal is then measured on all processes or on none.
                if step.global_samples < 2 * after.processes and after.processes > 1:
                    assert step.global_samples != after.processes * sum(step.sizes)
        weights = counted_of(after, position, samples, samples)
        assert all(weight == pytest.approx(1.0) for weight in weights.values())
        assert len(weights) == samples - position


def counted_of(layout: Layout, begin: int, end: int, samples: int) -> Counter[int]:
    """Return how much each sample counts between two positions, over all processes."""
    found: Counter[int] = Counter()
    for rank in range(layout.processes):
        steps = stream(samples, layout, rank).from_samples(begin)
        for step in itertools.takewhile(lambda step: step.samples_before < end, steps):
            for (inputs, _), size in zip(step.micro_batches, step.sizes, strict=True):
                for number in inputs.tolist():
                    found[number] += size / len(inputs)  # type: ignore[assignment]
    return Counter({number: weight for number, weight in found.items() if weight})


def order_of(layout: Layout, begin: int, end: int, samples: int) -> list[int]:
    """Return the samples that all processes take between two positions."""
    seen: list[int] = []
    for rank in range(layout.processes):
        steps = stream(samples, layout, rank).from_samples(begin)
        for step in itertools.takewhile(lambda step: step.samples_before < end, steps):
            seen += [value for inputs, _ in step.micro_batches for value in inputs.tolist()]
    return seen


def test_a_batch_of_another_size_than_asked_for_is_refused() -> None:
    """A data set that hands out ready batches would be trained with other weights than its samples have."""

    class Batched(Numbers):
        def get_batch(self, indices: list[int]) -> list[torch.Tensor]:
            return [torch.tensor(indices)[:4], torch.tensor(indices)[:4]]

    steps = BatchStream(Batched(40), samples=40, layout=Layout(processes=1, local_batch=10), rank=0, seed=1)
    with pytest.raises(InputError, match="a batch of 10 samples was asked for and one of 4 came"):
        next(steps.from_samples(0))


def test_orders_differ_by_epoch_and_repeat_by_seed() -> None:
    assert np.array_equal(epoch_order(1, 0, 50), epoch_order(1, 0, 50))
    assert not np.array_equal(epoch_order(1, 0, 50), epoch_order(1, 1, 50))
    assert sorted(epoch_order(1, 0, 50)) == list(range(50))


class Random(Numbers):
    """Items with random parts, as augmentation makes them."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        import random

        return index, random.getrandbits(30)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_depend_on_the_position_alone(workers: int) -> None:
    def draws(workers: int) -> list[int]:
        layout = Layout(processes=1, local_batch=10)
        steps = BatchStream(Random(40), samples=40, layout=layout, rank=0, seed=1, workers=workers).from_samples(0)
        return [value for step in one_epoch(steps) for _, targets in step.micro_batches for value in targets.tolist()]

    assert draws(workers) == draws(0)


class RandomBatches(Random):
    """The same for whole batches at once."""

    def get_batch(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(indices), torch.rand(len(indices))]


def test_random_whole_batches_repeat_from_any_position() -> None:
    layout = Layout(processes=1, local_batch=10)
    made = [BatchStream(RandomBatches(40), samples=40, layout=layout, rank=0, seed=1) for _ in range(2)]
    first, *rest = [step.micro_batches[0][1] for _, step in zip(range(6), made[0].from_samples(0), strict=False)]
    again = [step.micro_batches[0][1] for _, step in zip(range(5), made[1].from_samples(10), strict=False)]
    assert all(left.equal(right) for left, right in zip(rest, again, strict=True))
    assert not first.equal(rest[0])


class Pids(Numbers):
    """Items that say which process read them."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def test_loader_workers_go_on_over_the_epochs() -> None:
    made = BatchStream(
        Pids(20), samples=20, layout=Layout(processes=1, local_batch=6), rank=0, seed=1, workers=1
    ).from_samples(0)
    steps = [step for _, step in zip(range(9), made, strict=False)]
    assert (
        len({pid for step in steps for _, targets in step.micro_batches for pid in targets.tolist()} - {os.getpid()})
        == 1
    )
    expected = [
        step
        for _, step in zip(
            range(9),
            BatchStream(
                Numbers(20), samples=20, layout=Layout(processes=1, local_batch=6), rank=0, seed=1
            ).from_samples(0),
            strict=False,
        )
    ]
    assert [step.samples_after for step in steps] == [step.samples_after for step in expected]
    for left, right in zip(steps, expected, strict=True):
        assert left.micro_batches[0][0].equal(right.micro_batches[0][0])


def test_whole_steps_leave_out_every_tail() -> None:
    layout = Layout(processes=1, local_batch=9)
    steps = BatchStream(Numbers(20), samples=20, layout=layout, rank=0, seed=1, whole_steps=True).from_samples(18)
    taken = [step for _, step in zip(range(5), steps, strict=False)]
    assert [step.sizes for step in taken] == [(9,)] * 5
    assert [step.samples_before for step in taken] == [18, 27, 36, 45, 54]
    first_epoch = [index for step in taken[:2] for index in step.micro_batches[0][0].tolist()]
    assert first_epoch == epoch_order(1, 1, 20)[:18].tolist()


@given(layout=LAYOUTS, samples=st.integers(1, 600))
def test_the_smallest_micro_batch_is_known_beforehand(layout: Layout, samples: int) -> None:
    if samples < layout.global_batch:
        return
    sizes = step_sizes(samples, layout)
    expected = 0
    if min(sizes) >= layout.processes:
        expected = min(min(micro_batch_sizes(n, layout, r)) for n in set(sizes) for r in range(layout.processes))
    assert smallest_micro_batch(samples, layout) == expected
    assert tail_is_shared(samples, layout) == (len(sizes) > 1 and 0 < samples % layout.global_batch < sizes[-1])


def test_split_is_near_equal() -> None:
    assert split(10, 3) == [4, 3, 3]
