from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import GIB, FakePredictor, job, profile, timing

from tula_core.job import Cluster
from tula_core.mitigations import Packages
from tula_core.mitigations.batches.stages import batch_of
from tula_core.search.notes import stage_words
from tula_core.search.space import BatchRange, batches, candidates, key, layouts, reference_key


def shapes(found):
    return [(c.nodes, c.processes_per_node, c.local_batch, c.accumulation) for c in found]


@given(
    nodes=st.integers(1, 12),
    processes=st.integers(1, 9),
    reference=st.integers(1, 300),
    samples=st.integers(1, 5000),
    memory_mib=st.integers(100, 4000),
)
@settings(max_examples=60, deadline=None)
def test_every_candidate_fits_the_cluster_and_none_comes_twice(nodes, processes, reference, samples, memory_mib):
    asked = job(
        {"batch_size": reference},
        cluster={"nodes": nodes, "processes_per_node": processes},
        constraints={"memory": memory_mib * 2**20},
    )
    found = candidates(profile(samples), asked, FakePredictor(), ("warmup",))
    keys = [key(c) for c in found]
    assert keys == sorted(set(keys))
    alone = reference_key(found, reference)
    for c in found:
        assert c.nodes <= nodes and c.processes_per_node <= processes
        assert c.global_batch == c.nodes * c.processes_per_node * c.local_batch * c.accumulation
        assert c.mitigation == ("warmup",)
        if key(c) != alone:
            assert max(1, reference // 4) <= c.global_batch <= min(64 * reference, samples)
            assert c.accumulation & (c.accumulation - 1) == 0


def test_a_small_cluster_takes_every_count_and_a_large_one_powers_of_two_and_the_most():
    assert layouts(Cluster(nodes=1, processes_per_node=3)) == [(1, 1), (1, 2), (1, 3)]
    assert layouts(Cluster(nodes=3, processes_per_node=3)) == [
        (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3),
    ]  # fmt: skip
    assert sorted({nodes for nodes, _ in layouts(Cluster(nodes=12))}) == [1, 2, 4, 8, 12]


@pytest.mark.parametrize("cap", [None, 1000])
def test_without_a_binding_cap_there_is_no_accumulation(cap):
    found = batches(2, BatchRange(reference=64, low=16, high=512), cap)
    assert found == {(8, 1), (16, 1), (32, 1), (64, 1), (128, 1), (256, 1)}


def test_a_binding_cap_brings_accumulation_by_powers_of_two_above_it():
    found = batches(1, BatchRange(reference=64, low=16, high=256), 40)
    assert found == {(16, 1), (32, 1), (32, 2), (32, 4), (32, 8)}


def test_a_cap_below_the_smallest_share_reaches_the_range_by_accumulation_alone():
    assert batches(1, BatchRange(reference=64, low=16, high=64), 4) == {(4, 4), (4, 8), (4, 16)}


def test_a_reference_that_is_no_power_of_two_keeps_its_exact_shares():
    found = batches(3, BatchRange(reference=96, low=24, high=192), None)
    assert {(8, 1), (16, 1), (32, 1), (64, 1)} <= found
    odd = batches(2, BatchRange(reference=100, low=25, high=400), None)
    assert {(25, 1), (50, 1), (100, 1), (200, 1)} <= odd


def test_a_reference_that_does_not_divide_is_rounded_down_to_whole_shares():
    assert (21, 1) in batches(3, BatchRange(reference=64, low=16, high=128), None)


@pytest.mark.parametrize(("reference", "expected"), [(64, (1, 1, 8, 8)), (48, (1, 1, 6, 8)), (15, (1, 1, 5, 3))])
def test_the_reference_on_one_process_is_there_even_where_memory_forces_accumulation(reference, expected):
    predictor = FakePredictor()
    asked = job({"batch_size": reference}, constraints={"max_local_batch": 9})
    assert expected in shapes(candidates(profile(), asked, predictor, ()))


def test_memory_of_the_host_is_shared_by_its_processes():
    asked = job(cluster={"processes_per_node": 2})
    found = shapes(candidates(profile(memory_bytes=2 * GIB), asked, FakePredictor(), ()))
    largest = {p: max(local for _, processes, local, _ in found if processes == p) for p in (1, 2)}
    assert largest == {1: 256, 2: 64}


def test_measured_configurations_are_in_where_the_cluster_still_allows_them():
    steps = (timing(1, 1, 37), timing(1, 2, 3, 5), timing(2, 1, 16), timing(1, 4, 16))
    found = shapes(candidates(profile(steps=steps), job(cluster={"processes_per_node": 2}), FakePredictor(), ()))
    assert (1, 1, 37, 1) in found and (1, 2, 3, 5) in found
    assert (2, 1, 16, 1) not in found and (1, 4, 16, 1) not in found


def test_a_data_set_smaller_than_every_batch_leaves_the_reference_alone():
    assert shapes(candidates(profile(10), job(), FakePredictor(), ())) == [(1, 1, 64, 1)]


def test_other_precisions_bring_their_own_candidates_beside_the_recipes():
    asked = job({"batch_size": 64}, precisions=["fp32", "bf16", "fp16"], cluster={"processes_per_node": 2})
    found = candidates(profile(2000), asked, FakePredictor(), ("warmup",))
    by_precision = {name: [c for c in found if c.precision == name] for name in (None, "bf16", "fp16")}
    assert len(found) == sum(len(part) for part in by_precision.values())
    assert shapes(by_precision["bf16"]) == shapes(by_precision["fp16"]) == shapes(by_precision[None])
    assert all(c.options == {"precision": "bf16"} for c in by_precision["bf16"])
    assert [key(c) for c in found] == sorted({key(c) for c in found})
    reference = next(c for c in found if key(c) == reference_key(found, 64))
    assert reference.precision is None


def test_precisions_are_those_of_the_recipe_alone_unless_asked_for():
    asked = job({"batch_size": 64, "precision": "bf16"})
    assert all(c.options == {} for c in candidates(profile(2000), asked, FakePredictor(), ()))
    both = job({"batch_size": 64, "precision": "bf16"}, precisions=["bf16", "fp32"])
    assert {c.precision for c in candidates(profile(2000), both, FakePredictor(), ())} == {None, "fp32"}


def test_each_precision_has_its_own_largest_batch():
    class Halving(FakePredictor):
        def max_local_batch(self, nodes, processes_per_node, limit_bytes, precision=None, mitigation=(), /):
            return 128 if precision else 64

    asked = job({"batch_size": 64}, precisions=["bf16"])
    found = candidates(profile(2000), asked, Halving(), ())
    assert max(c.local_batch for c in found if c.precision is None) == 64
    assert max(c.local_batch for c in found if c.precision == "bf16") == 128


def test_a_method_that_keeps_something_leaves_less_room_for_its_batches():
    class Keeping(FakePredictor):
        def max_local_batch(self, nodes, processes_per_node, limit_bytes, precision=None, mitigation=(), /):
            return 64 if "lars" in mitigation else 128

    found = candidates(profile(2000), job({"batch_size": 64}), Keeping(), Packages.auto("sgd"))
    largest = {c.mitigation: max(o.local_batch for o in found if o.mitigation == c.mitigation) for c in found}
    assert largest[("lars",)] == 64 and largest[("sqrt-lr", "warmup")] == 128
    assert {c.global_batch for c in found if c.mitigation == ("lars",)} == {
        c.global_batch for c in found if c.mitigation == ("sqrt-lr", "warmup")
    }
    assert [key(c) for c in found] == sorted({key(c) for c in found})


def test_batch_norm_networks_are_not_planned_at_one_sample_per_process():
    asked = job({"batch_size": 4}, cluster={"processes_per_node": 4})
    plain = profile(2000)
    normed = replace(plain, facts=replace(plain.facts, has_batch_norm=True))
    assert min(c.local_batch for c in candidates(plain, asked, FakePredictor(), ())) == 1
    assert min(c.local_batch for c in candidates(normed, asked, FakePredictor(), ())) == 2


def test_with_a_growing_batch_each_candidate_is_the_end_of_its_stages():
    asked = job({"batch_size": 64, "epochs": 5}, cluster={"nodes": 1, "processes_per_node": 2})
    plain = candidates(profile(6400), asked, FakePredictor(), ("warmup",))
    grown = candidates(profile(6400), asked, FakePredictor(), ("growth",))
    assert set(shapes(grown)) == set(shapes(plain)) and len({key(c) for c in grown}) == len(grown)
    for c in grown:
        assert (c.stages is not None) == (c.global_batch > 64)
        if c.stages is not None:
            last = c.stages[-1]
            assert (last.local_batch, last.accumulation) == (c.local_batch, c.accumulation)
            assert batch_of(c.stages[0]) == 64
    # One process takes 64 samples where the local batch is as large, so such rows come twice.
    twice = [c for c in grown if c.stages is not None and c.stages[0].processes_per_node < c.processes_per_node]
    assert {c.local_batch for c in twice} == {c.local_batch for c in plain if c.processes == 2} - {8, 16, 32}
    assert all(stage.local_batch <= c.local_batch for c in twice for stage in c.stages or ())


def test_batches_that_a_schedule_never_comes_to_are_not_offered():
    flat = job({"batch_size": 64, "schedule": "constant"}, cluster={"nodes": 1, "processes_per_node": 2})
    found = candidates(profile(6400), flat, FakePredictor(), ("seesaw",))
    assert max(c.global_batch for c in found) == 64 and all(c.stages is None for c in found)
    assert len({key(c) for c in found}) == len(found)


def test_the_stages_of_a_choice_are_said_in_words():
    asked = job({"batch_size": 64, "epochs": 5}, cluster={"nodes": 1, "processes_per_node": 1})
    found = candidates(profile(6400), asked, FakePredictor(), ("growth",))
    said = [stage_words(c) for c in found if c.global_batch in (64, 256)]
    assert said == [
        " At this batch growth has nothing to grow.",
        " The global batch grows on the way: 64, then 128 from 12,800, 256 from 25,600 training samples on.",
    ]


def test_that_processes_join_later_is_said_too():
    asked = job({"batch_size": 64, "epochs": 5}, cluster={"nodes": 2, "processes_per_node": 1})
    found = candidates(profile(6400), asked, FakePredictor(), ("growth",))
    (said,) = [stage_words(c) for c in found if c.global_batch == 256 and c.nodes == 2 and c.stages[0].nodes == 1]
    assert said.endswith(
        "It begins on 1 x 1 processes; those of the row start at 25,600 samples, and nodes are paid for only while "
        "they train."
    )
