"""Dual batch: uneven shares of a step, updates of each process alone, one merge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.engine.batches import BatchStream, Layout, micro_batch_sizes
from tula_core.engine.launch import WorkerTask, launch
from tula_core.engine.shares import own_samples, step_sizes
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.mitigations import refusal, resolve, step_cost
from tula_core.mitigations.batches.dual import dual_batch, update_sizes, updates_of

NAME = "dual-batch"
WORLDS = st.tuples(st.integers(2, 9), st.integers(4, 64), st.integers(1, 3))


def uneven(world: tuple[int, int, int], small_share: float, extra: float, fixed_samples: float) -> Layout:
    processes, local_batch, accumulation = world
    batch = processes * local_batch * accumulation
    shares = tuple(dual_batch(batch, processes, small_share, extra, fixed_samples).shares)
    return Layout(processes=processes, local_batch=local_batch, accumulation=accumulation, shares=shares)


@given(world=WORLDS, share=st.floats(0.25, 0.75), extra=st.floats(1.0, 1.2), fixed=st.floats(1.0, 1000.0))
def test_all_samples_of_a_step_are_shared_out_within_the_local_batch(
    world: tuple[int, int, int], share: float, extra: float, fixed: float
) -> None:
    layout = uneven(world, share, extra, fixed)
    for size in step_sizes(3 * layout.global_batch + 2 * layout.processes + 1, layout):
        owns = own_samples(size, layout)
        assert sum(owns) == size and min(owns) >= 2 and owns == sorted(owns, reverse=True)
        for rank, own in enumerate(owns):
            micro = micro_batch_sizes(size, layout, rank)
            assert sum(micro) == own and min(micro) >= 1 and max(micro) <= layout.local_batch
            parts = updates_of(micro, layout.shares[rank][1]) if layout.shares else []
            assert [index for part in parts for index in part] == list(range(len(micro)))
            assert min(sum(micro[index] for index in part) for part in parts) >= 2


@given(processes=st.integers(2, 9), local=st.integers(16, 512), extra=st.floats(1.0, 1.2), fixed=st.floats(1.0, 500.0))
def test_small_and_large_processes_end_a_step_together(processes: int, local: int, extra: float, fixed: float) -> None:
    """Time in units of a sample's, but for what rounding the batches to whole samples leaves."""
    dual = dual_batch(processes * local, processes, 0.5, extra, fixed)
    large = extra * local
    small_samples = dual.factor * large
    taken = small_samples * (1.0 + fixed / dual.small_batch)
    assert taken == pytest.approx(large + fixed, rel=1.0 / dual.small_batch + 1.0 / local)
    total = (processes - dual.small_processes) * large + dual.small_processes * small_samples
    assert total == pytest.approx(processes * local)


def test_batches_and_weights_are_those_of_the_authors_files() -> None:
    fixed = 6.2339e-3 / 2.2595e-4
    for small, batch in enumerate((79, 165, 237, 297), start=1):
        # A batch of 1000 is the large processes' own: extra times an even share.
        dual = dual_batch(int(5 * 1000 / 1.05), 5, small / 5, 1.05, fixed)
        assert (dual.small_processes, dual.large_batch, dual.small_batch) == (small, 1000, batch)
        assert dual.factor == pytest.approx((5 / 1.05 - (5 - small)) / small)


@given(world=WORLDS, share=st.floats(0.25, 0.75), fixed=st.floats(1.0, 1000.0), size=st.integers(20, 500))
def test_without_extra_time_the_shares_are_those_of_plain_training(
    world: tuple[int, int, int], share: float, fixed: float, size: int
) -> None:
    layout = uneven(world, share, 1.0, fixed)
    plain = Layout(processes=world[0], local_batch=world[1], accumulation=world[2])
    size = min(size, plain.global_batch)
    if size < 2 * world[0]:
        return
    for rank in range(world[0]):
        assert micro_batch_sizes(size, layout, rank) == micro_batch_sizes(size, plain, rank)
        assert len(updates_of(micro_batch_sizes(size, layout, rank), layout.shares[rank][1])) == 1


class Numbers:
    """A data set whose items are their own numbers."""

    def __len__(self) -> int:
        return 203

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


@pytest.mark.parametrize("seen", [0, 64, 100])
def test_every_sample_is_used_once_per_epoch_and_has_its_place_in_the_run(seen: int) -> None:
    layout = uneven((3, 8, 1), 0.5, 1.2, 4.0)
    used: list[int] = []
    places: list[int] = []
    for rank in range(3):
        for step in BatchStream(Numbers(), samples=203, layout=layout, rank=rank, seed=1).from_samples(seen):
            for (inputs, _), start in zip(step.micro_batches, step.starts, strict=True):
                used += inputs.tolist()
                places += range(start, start + len(inputs))
            if step.ends_epoch:
                break
    assert len(used) == len(set(used)) == 203 - seen
    assert sorted(places) == list(range(seen, 203))


CASES = [
    {"accumulation": accumulation, "momentum": momentum, "options": options}
    for momentum in (0.0, 0.9)
    for accumulation, options in (
        (1, {"extra": 1.2, "fixed_samples": 3.0}),
        (2, {"extra": 1.1, "fixed_samples": 2.0}),
        (1, {"extra": 1.0}),
    )
]


@pytest.mark.parametrize("processes", [2, 3])
def test_an_epoch_is_that_of_the_equations(tmp_path: Path, processes: int) -> None:
    task = WorkerTask(
        entry="dual_entries:epochs",
        payload={"local_batch": 12, "cases": CASES},
        folder=tmp_path,
        nodes=1,
        processes_per_node=processes,
        threads=1,
    )
    done = launch(task, lambda event: None)
    assert done.failure is None, done.failure
    assert done.result is not None
    for case, found in zip(CASES, done.result["found"], strict=True):
        assert found["agree"], case
        assert np.allclose(found["weights"], found["expected"], rtol=1e-9, atol=1e-12), case
        assert (max(found["updates"]) > 1) == (case["options"]["extra"] > 1.0), case


def test_updates_hold_two_samples_where_there_are_as_many() -> None:
    assert update_sizes(2, 1) == [2] and update_sizes(7, 2) == [3, 2, 2] and update_sizes(1, 5) == [1]
    with pytest.raises(AssertionError, match="do not make up updates"):
        updates_of([3, 5], 4)


def test_it_is_refused_on_one_process_in_fp16_and_beside_what_scales_the_rate() -> None:
    wide = {"nodes": 1, "processes_per_node": 2}
    assert resolve(Job(workload="x", mitigation=NAME, cluster=wide)) == (NAME,)
    with pytest.raises(InputError, match="'dual-batch' needs 2 processes at least, and there is 1"):
        resolve(Job(workload="x", mitigation=NAME, cluster={"nodes": 1, "processes_per_node": 1}))
    with pytest.raises(InputError, match="trains in bf16 and fp32, and the precision is fp16"):
        resolve(Job(workload="x", mitigation=NAME, cluster=wide, recipe={"precision": "fp16"}))
    with pytest.raises(InputError, match="small batches train at the recipe's rate"):
        resolve(Job(workload="x", mitigation=[NAME, "linear-lr"], cluster=wide))
    assert refusal(NAME, 2, "bf16") is None and refusal("sam", 1, "fp16") is None


def test_its_cost_is_the_extra_time_and_a_micro_batch_more() -> None:
    assert step_cost([NAME], {}) == pytest.approx(1.05 * 1.05)
    assert step_cost([NAME], {NAME: {"extra": 1.2}}) == pytest.approx(1.05 * 1.2)
