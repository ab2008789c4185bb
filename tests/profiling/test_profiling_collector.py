import pytest

from tula_core.profiling.collector import Collector
from tula_core.profiling.worlds import ONE, World

TWO = World(nodes=1, processes_per_node=2)


@pytest.fixture
def heard():
    said = []
    collector = Collector(said.append, budget_s=10)
    collector.begin(ONE)
    return collector, said


def step(local_batch, step_time_s=0.1, **changes):
    return {
        "kind": "step",
        "at_s": 0.0,
        "nodes": 1,
        "processes_per_node": 1,
        "local_batch": local_batch,
        "accumulation": 1,
        "steps": 3,
        "step_time_s": step_time_s,
        "step_time_median_s": step_time_s,
        "step_time_error_s": 0.0,
        "first_step_s": 1.0,
        "loader_s": 0.0,
        "compute_s": step_time_s,
        "communication_s": 0.0,
        "optimizer_s": 0.0,
        "block_scatter": None,
        "order": 0,
    } | changes


def test_the_latest_word_on_a_configuration_counts(heard):
    collector, said = heard
    collector.hear(step(8, 0.2))
    collector.hear(step(8, 0.1))
    assert [row.step_time_s for row in collector.steps.values()] == [0.1]
    assert said[-1].data["images_per_s"] == pytest.approx(80)


def test_worlds_are_kept_apart(heard):
    collector, _ = heard
    collector.hear({"kind": "memory", "at_s": 0.0, "local_batch": 8, "peak_bytes": 100, "outcome": "ok"})
    collector.begin(TWO)
    collector.hear({"kind": "memory", "at_s": 0.0, "local_batch": 8, "peak_bytes": 200, "outcome": "ok"})
    assert [(use.processes_per_node, use.peak_bytes) for use in collector.memory.values()] == [(1, 100), (2, 200)]
    assert collector.largest_fit(ONE) == 8
    assert collector.smallest_failed() is None


def test_a_size_that_died_later_loses_its_timing(heard):
    collector, said = heard
    collector.hear({"kind": "memory", "at_s": 0.0, "local_batch": 8, "peak_bytes": 100, "outcome": "ok"})
    collector.hear(step(8))
    collector.record_failed("out_of_memory", 8)
    assert not collector.steps
    assert collector.smallest_failed() == 8
    assert collector.largest_fit(ONE) is None
    assert said[-1].level == "warning"


@pytest.mark.parametrize(("share", "warned"), [(0.1, False), (0.35, True), (-0.35, True)])
def test_a_drift_is_spoken_of_where_it_matters(heard, share, warned):
    collector, _ = heard
    collector.hear({"kind": "drift", "at_s": 0.0, "share": share})
    assert any("drifted" in text for text in collector.warnings) is warned


def test_events_of_no_interest_are_passed_over(heard):
    collector, said = heard
    before = len(said)
    collector.hear({"kind": "ready", "at_s": 0.0, "seconds": 1.0})
    assert len(said) == before


def test_memory_that_depends_on_content_is_warned_of():
    said = []
    collector = Collector(said.append, 60.0)
    even = {"kind": "content", "at_s": 0.0, "samples": 300, "mean_bytes": 5.0, "sd_bytes": 0.0, "worst_bytes": 5.0}
    collector.hear(even)
    assert collector.warnings == []
    collector.hear({**even, "sd_bytes": 4.0, "worst_bytes": 50.0})
    assert "of 300 tried the fullest needs 10 times the mean" in collector.warnings[0]
    assert collector.content.worst_bytes == 50.0
