import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import pytest
from factories import make_step
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_facts import make_facts, make_hardware, make_job

from tula_core.profiling.active import FEWEST_SPREAD, SETTLED, Standing, log_weights, next_size
from tula_core.profiling.active_worlds import Known, best_so_far, sizes_of_choice, worker_hints, worth_of_worlds
from tula_core.profiling.collector import Collector
from tula_core.profiling.worlds import ONE, World
from tula_core.progress import silent
from tula_core.records import StartUp

measuring = importlib.import_module("tula_core.profiling.measure")  # the package has a function of that name
TWO, FOUR = World(nodes=1, processes_per_node=2), World(nodes=1, processes_per_node=4)


def standing(step_time_s=1.0, *, error=0.01, blocks=1, block_s=1.0):
    return Standing(step_time_s=step_time_s, relative_error=error, log_weight=0.0, blocks=blocks, block_s=block_s)


def known(*steps, **changes):
    fields = {
        "job": make_job({"cluster": {"processes_per_node": 4}}),
        "facts": make_facts(train_samples=20_000, gradient_bytes=400_000),
        "hardware": make_hardware(devices=4),
        "steps": steps,
        "communication": (),
        "critical_batch": 320.0,
    }
    return Known(**{**fields, **changes})


class TestNextSize:
    def test_time_goes_to_what_may_be_the_best(self):
        clear = [standing(1.0, blocks=2), standing(3.0), standing(1.01, error=0.05), standing(2.0)]
        assert next_size(clear, None, 5) == (2, False)

    def test_of_two_that_may_be_the_best_the_cheaper_one_is_timed(self):
        pair = [standing(1.0, error=0.05, block_s=1.0), standing(1.0, error=0.05, block_s=9.0)]
        assert next_size(pair, None, 5)[0] == 0
        assert next_size([pair[1], pair[0]], None, 5)[0] == 1

    def test_it_ends_where_nothing_can_change_the_choice_and_some_were_timed_twice(self):
        sizes = [standing(1.0), standing(2.0), standing(3.0), standing(4.0)]
        for expected in (0, 1, 2):
            number, settled = next_size(sizes, None, 5)
            assert (number, settled) == (expected, True)
            sizes[number] = dataclasses.replace(sizes[number], blocks=2)
        assert next_size(sizes, None, 5) == (None, True)
        assert sum(size.blocks > 1 for size in sizes) == FEWEST_SPREAD

    def test_a_world_that_cannot_win_is_left_after_its_screen(self):
        close = [standing(1.0, error=0.1, blocks=2)] * 3
        assert next_size(close, None, 5)[1] is False
        assert next_size(close, math.log(0.2), 5) == (None, True)

    def test_it_ends_where_every_size_has_the_most_blocks(self):
        assert next_size([standing(error=0.5, blocks=5)] * 2, None, 5) == (None, False)

    @given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.0, 0.3), st.integers(1, 5)), min_size=1, max_size=6))
    @settings(max_examples=40, deadline=None)
    def test_the_answer_is_a_size_that_may_be_timed_more_and_always_the_same(self, drawn):
        sizes = [standing(time, error=error, blocks=blocks) for time, error, blocks in drawn]
        number, settled = next_size(sizes, None, 5)
        assert number is None or sizes[number].blocks < 5
        assert next_size(sizes, None, 5) == (number, settled)


@pytest.mark.parametrize(
    ("objective", "share"), [("time", 0.0), ("cost", 1.0), ("knee", 0.5), ({"time": 3, "cost": 1}, 0.25)]
)
def test_nodes_count_as_much_as_the_objective_weighs_cost(objective, share):
    job = make_job({"objective": objective}) if isinstance(objective, str) else None
    job = job or make_job().model_copy(update={"objective": objective})
    nodes = np.array([1.0, 8.0])
    found = log_weights(job, nodes, nodes, 64.0 / nodes, 500.0)
    assert found[1] - found[0] == pytest.approx(share * math.log(8.0))


class TestWorlds:
    one = [make_step(1, 1, batch) for batch in (16, 32, 64, 128, 256)]
    four = [make_step(1, 4, batch) for batch in (16, 32, 64, 128)]

    def test_sizes_are_those_of_the_whole_cluster_and_none_above_what_was_timed(self):
        found = sizes_of_choice(known(*self.one), [ONE, FOUR, TWO], failed=None)
        assert set(found) == {ONE, TWO, FOUR}
        assert max(size for sizes in found.values() for size in sizes) == 256
        assert max(sizes_of_choice(known(*self.one), [ONE], failed=64)[ONE]) == 32

    def test_the_world_that_may_hold_the_best_is_worth_most(self):
        # The start is what measuring costs, so that a cheap look at a neighbour is no cheaper than one at the best.
        probed = known(*self.one)
        sizes = sizes_of_choice(probed, [ONE, FOUR, TWO], failed=None)
        best, worth = worth_of_worlds(probed, sizes, [TWO, FOUR], start_s=60.0)
        assert best == FOUR and worth >= SETTLED
        assert worth_of_worlds(probed, sizes, [TWO, FOUR], start_s=60.0) == (best, worth)

    def test_a_world_between_two_that_were_measured_is_worth_little(self):
        probed = known(*self.one, *self.four)
        sizes = sizes_of_choice(probed, [ONE, FOUR, TWO], failed=None)
        best, worth = worth_of_worlds(probed, sizes, [TWO], start_s=4.0)
        assert best == TWO and worth < SETTLED

    def test_a_worker_hears_its_weights_and_the_best_of_the_others(self):
        probed = known(*self.one)
        hints = worker_hints(probed, TWO, [16, 32])
        assert set(hints["log_weights"]) == {"16", "32"}
        assert hints["rival"] == best_so_far(probed, without=TWO) is not None
        assert worker_hints(known(), ONE, [8])["rival"] is None
        own = [math.log(row.step_time_s) for row in self.one]
        weights = worker_hints(probed, ONE, [row.local_batch for row in self.one])["log_weights"]
        assert hints["rival"] == pytest.approx(min(np.add(own, list(weights.values()))))


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A probe on four devices whose worlds are measured at once, from a truth; and the worlds in their order."""
    order = []

    def fake(probe, world, share, later_starts):
        order.append(world)
        for batch in (8, 16, 32, 64, 128, 256):
            if batch * world.processes >= 32:
                probe.collector.steps[world, batch] = make_step(world.nodes, world.processes_per_node, batch)
        probe.collector.start_up[world] = StartUp(nodes=1, processes_per_node=world.processes, seconds=3.0)

    monkeypatch.setattr(measuring, "_measure_world", fake)
    return order


def measured(tmp_path, **changes):
    job = make_job({"cluster": {"processes_per_node": 4}, **changes})
    facts = make_facts(train_samples=20_000, gradient_bytes=400_000)
    return measuring.measure(job, facts, make_hardware(devices=4), silent, folder=tmp_path)


def test_a_world_that_is_not_worth_its_start_is_left_out_and_that_is_said(tmp_path, probe):
    found = measured(tmp_path)
    assert probe == [ONE, FOUR]
    assert found.probe.stopped_because.startswith("the choice is settled: measuring 2 processes too would save 0.")


def test_worlds_without_time_are_unsettled_and_no_more_than_unmeasured(tmp_path, probe):
    found = measured(tmp_path, probe={"seconds": 1})
    assert probe == [ONE]
    assert found.probe.stopped_because == "the budget of 1 s is used"
    assert any("4 processes not measured" in warning for warning in found.warnings)


def test_known_so_far_takes_the_noise_scale_for_the_critical_batch():
    collector = Collector(silent, 10.0)
    job, facts, hardware = make_job(), make_facts(), make_hardware()
    collector.begin(ONE)
    probe = measuring.Probe(
        job=job, facts=facts, hardware=hardware, folder=Path(), collector=collector, pilot_world=ONE
    )
    assert probe.known.critical_batch == 320.0
    noise = {"small_batch": 8, "large_batch": 16, "estimates": 5, "squared_gradient": 1.0, "trace_covariance": 90.0}
    collector.hear({"kind": "noise", **noise, "noise_scale_samples": 90.0})
    assert probe.known.critical_batch == 90.0
