import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiling_facts import make_facts, make_hardware, make_job

from tula_core.engine.shares import Layout, smallest_micro_batch
from tula_core.profiling.pilot import pilot_layout
from tula_core.profiling.worlds import (
    ONE,
    World,
    large_pilot_batch,
    limits_of_one_machine,
    local_batches,
    own_seconds,
    shares,
    worlds_to_measure,
)


def world(nodes, processes_per_node):
    return World(nodes=nodes, processes_per_node=processes_per_node)


@pytest.mark.parametrize(
    ("nodes", "processes_per_node", "devices", "expected"),
    [
        (1, 1, 8, [(1, 1)]),
        (1, 2, 2, [(1, 1), (1, 2)]),
        (1, 4, 8, [(1, 1), (1, 4), (1, 2)]),
        (1, 6, 8, [(1, 1), (1, 6), (1, 4), (1, 2)]),
        (4, 2, 2, [(1, 1), (1, 2)]),
        (2, 1, 2, [(1, 1), (2, 1)]),
        (4, 2, 8, [(1, 1), (1, 2), (4, 2), (2, 2)]),
        (1, 8, 2, [(1, 1), (1, 2)]),
    ],
)
def test_worlds_fit_the_machine_and_the_most_telling_come_first(nodes, processes_per_node, devices, expected):
    assert worlds_to_measure(nodes, processes_per_node, devices) == [world(*shape) for shape in expected]


def test_what_one_machine_cannot_show_is_said():
    hardware = make_hardware(devices=2)
    assert limits_of_one_machine(1, 2, hardware) == []
    assert "emulated" in limits_of_one_machine(2, 1, hardware)[0]
    assert "extrapolated" in limits_of_one_machine(2, 2, hardware)[0]
    assert "extrapolated" in limits_of_one_machine(1, 8, hardware)[0]


def test_local_batches_double_around_the_reference():
    job, facts = make_job(), make_facts(train_samples=1438)
    assert local_batches(job, facts, ONE) == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert local_batches(job, facts, world(1, 2)) == [16, 32, 64, 128, 256, 512]


def test_local_batches_never_exceed_data_cap_or_64_references():
    facts = make_facts(train_samples=1_000_000)
    assert max(local_batches(make_job(), facts, ONE)) == 64 * 32
    assert max(local_batches(make_job({"constraints": {"max_local_batch": 100}}), facts, ONE)) == 64
    assert max(local_batches(make_job(), make_facts(train_samples=100), ONE)) == 64
    assert local_batches(make_job({"recipe": {"batch_size": 256}}), make_facts(train_samples=100), ONE) == [25, 50, 100]
    assert local_batches(make_job(), make_facts(train_samples=3), world(1, 4)) == []


@given(
    samples=st.integers(2, 10**6),
    batch=st.integers(1, 5000),
    processes=st.integers(1, 16),
    cap=st.none() | st.integers(1, 5000),
    norm=st.booleans(),
)
def test_local_batches_are_few_ascending_and_within_the_data(samples, batch, processes, cap, norm):
    job = make_job({"recipe": {"batch_size": batch}, "constraints": {"max_local_batch": cap}})
    facts = make_facts(train_samples=samples, has_batch_norm=norm)
    sizes = local_batches(job, facts, world(1, processes))
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 10
    assert all(size >= 1 and size * processes <= samples and size <= (cap or size) for size in sizes)
    assert bool(sizes) == (processes <= samples)


def test_after_a_size_that_did_not_fit_only_smaller_ones_are_left():
    job, facts = make_job(), make_facts(train_samples=1438)
    assert local_batches(job, facts, ONE, below=64) == [8, 16, 32]
    assert local_batches(job, facts, ONE, below=8) == [1, 2, 4]
    assert local_batches(job, make_facts(has_batch_norm=True), ONE, below=8) == [2, 4]
    assert local_batches(job, facts, ONE, below=1) == []


def test_second_pilot_is_smaller_where_the_data_are_few():
    assert large_pilot_batch(32, 60_000) == 256
    assert large_pilot_batch(32, 600) == 128
    assert large_pilot_batch(32, 40) == 8
    assert large_pilot_batch(1, 1) == 1


def test_shares_sum_to_one_and_the_pilot_world_gets_twice_the_time():
    worlds = worlds_to_measure(1, 4, 4)
    parts = shares(worlds, worlds[1])
    assert sum(parts) == pytest.approx(1.0)
    assert parts[1] == pytest.approx(2 * parts[2])
    assert shares([ONE], ONE) == [1.0]


@given(left=st.floats(0.1, 1e4), start=st.floats(0, 100), share=st.floats(0.05, 1.0), later=st.integers(0, 5))
def test_own_seconds_leave_time_for_later_starts_where_there_is_any(left, start, share, later):
    own = own_seconds(left, start, share=share, later_starts=later)
    assert own >= 1.5
    assert own <= max(left - start, 1.5)


def test_world_names_itself():
    assert [str(ONE), str(world(1, 2)), str(world(2, 2))] == ["1 process", "2 processes", "4 processes on 2 nodes"]
    assert dataclasses.astuple(world(2, 3)) == (2, 3)


@pytest.mark.parametrize(("batch", "processes"), [(4, 8), (1, 1), (2, 2), (64, 2)])
def test_no_size_is_smaller_than_the_network_can_train_on(batch, processes):
    job = make_job({"recipe": {"batch_size": batch}})
    sizes = local_batches(job, make_facts(smallest_batch=2), world(1, processes))
    assert sizes and min(sizes) >= 2
    assert local_batches(job, make_facts(smallest_batch=2, train_samples=1), ONE) == []


@given(
    batch=st.integers(1, 600),
    processes=st.integers(1, 4),
    largest=st.integers(2, 64),
    samples=st.integers(1, 700),
    least=st.integers(1, 2),
)
def test_a_pilot_has_no_micro_batch_that_cannot_be_trained_on(batch, processes, largest, samples, least):
    layout = pilot_layout(batch, processes, largest, samples=samples, least=least)
    if layout is None:
        return
    assert layout.global_batch <= samples and layout.local_batch <= largest
    assert smallest_micro_batch(samples, layout) >= least
    assert layout.global_batch >= batch - processes


def test_a_pilot_takes_the_batch_asked_for_where_it_can():
    assert pilot_layout(128, 2, 512, samples=600, least=2) == Layout(processes=2, local_batch=64)
    assert pilot_layout(128, 1, 32, samples=600) == Layout(processes=1, local_batch=32, accumulation=4)
    assert pilot_layout(64, 2, 64, samples=10) is None
