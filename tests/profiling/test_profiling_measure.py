import dataclasses
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import make_profile
from profiling_facts import make_facts, make_hardware, make_job

from tula_core.errors import InputError, OutOfMemoryError, RunError
from tula_core.job import Job
from tula_core.models.checking import check_profile
from tula_core.profiling import complete, measure, profile
from tula_core.profiling.collector import Collector
from tula_core.profiling.measure import Probe, _measure_world, _time_limit, _why_stopped
from tula_core.profiling.worlds import ONE
from tula_core.progress import silent
from tula_core.records import StartUp, from_json, to_json

HERE = Path(__file__).parent


@pytest.fixture(autouse=True, scope="module")
def _workers_find_the_workloads(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield


def measured(tmp_path, workload, listener=silent, **changes):
    job = make_job({"workload": f"profiling_workloads:{workload}", **changes})
    return measure(job, make_facts(), make_hardware(), listener, folder=tmp_path)


def states():
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def two_processes(_workers_find_the_workloads, home):
    """A whole profile of the tiny workload on up to two processes, with the events said."""
    said = []
    data = {"workload": "profiling_workloads:tiny", "probe": {"seconds": 240}}
    job = Job.from_mapping(data | {"cluster": {"processes_per_node": 2, "threads_per_process": 1}})
    before = states()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TULA_HOME", str(home))
        resolved, found, cached = profile(job, listener=said.append)
    assert states() == before
    return job, resolved, found, cached, said


class TestTwoProcesses:
    def test_every_part_of_the_profile_is_there(self, two_processes):
        _, resolved, found, cached, _ = two_processes
        assert not cached
        assert resolved.recipe.batch_size == 32
        check_profile(found)
        worlds = {(row.nodes, row.processes_per_node) for row in found.steps}
        assert worlds == {(1, 1), (1, 2)}
        assert {row.local_batch for row in found.steps if row.processes_per_node == 1} == {8, 16, 32, 64, 128, 256, 512}
        assert {row.local_batch for row in found.steps if row.processes_per_node == 2} == {16, 32, 64, 128, 256}
        assert {use.outcome for use in found.memory} == {"ok"}
        assert len(found.memory) == len(found.steps)
        assert {row.processes_per_node for row in found.start_up} == {1, 2}
        assert {row.samples for row in found.evaluation} == {512}
        assert found.checkpoint_s > 0
        assert from_json(type(found), to_json(found), source="test") == found

    def test_parts_sum_to_the_step_and_one_process_has_no_communication(self, two_processes):
        for row in two_processes[2].steps:
            parts = row.loader_s + row.compute_s + row.communication_s + row.optimizer_s
            assert parts == pytest.approx(row.step_time_s)
            assert row.steps >= 6
            assert row.processes_per_node > 1 or row.communication_s == 0

    def test_order_was_shuffled(self, two_processes):
        rows = [row for row in two_processes[2].steps if row.processes_per_node == 1]
        assert sorted(row.order for row in rows) == list(range(len(rows)))
        assert [row.order for row in rows] != list(range(len(rows)))

    def test_communication_was_timed_over_messages_up_to_the_gradients(self, two_processes):
        found = two_processes[2]
        assert max(row.message_bytes for row in found.communication) == found.facts.gradient_bytes
        assert {row.processes_per_node for row in found.communication} == {2}

    def test_two_pilots_learn_with_the_whole_schedule(self, two_processes):
        found = two_processes[2]
        assert [pilot.global_batch for pilot in found.pilots] == [32, 128]
        assert [pilot.learning_rate for pilot in found.pilots] == pytest.approx([0.1, 0.4])
        for pilot in found.pilots:
            assert pilot.planned_samples == 8 * 512
            assert pilot.points[-1].schedule_fraction == 1.0
            assert pilot.points[-1].metric > 0.9
            assert not pilot.diverged

    def test_noise_comes_from_the_pilot_on_two_processes(self, two_processes):
        noise = two_processes[2].noise
        assert (noise.small_batch, noise.large_batch) == (64, 128)
        assert noise.estimates >= 10
        assert math.isfinite(noise.trace_covariance)

    def test_it_stops_when_all_is_measured(self, two_processes):
        found = two_processes[2]
        assert found.probe.stopped_because == "all configurations are measured"
        assert found.probe.used_s < 240

    def test_machine_and_progress_were_said(self, two_processes):
        said = two_processes[4]
        assert any("hardware" in event.data for event in said)
        fractions = [event.fraction for event in said if event.stage == "profile" and event.fraction is not None]
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0

    def test_nothing_is_left_behind_and_the_cache_answers_next_time(self, two_processes, home, monkeypatch):
        monkeypatch.setenv("TULA_HOME", str(home))
        job, resolved, found, _, _ = two_processes
        assert not list(Path(tempfile.gettempdir()).glob("tula-profile-*"))
        assert not list(Path(tempfile.gettempdir()).glob("tula-describe-*"))
        assert profile(job) == (resolved, found, True)


@pytest.mark.parametrize(("workload", "outcome"), [("out_of_memory", "out_of_memory"), ("killed", "killed")])
def test_a_size_that_does_not_fit_is_a_data_point(tmp_path, workload, outcome):
    found = measured(tmp_path, workload, probe={"seconds": 120})
    check_profile(found)
    assert [row.local_batch for row in found.steps] == [8, 16, 32]
    assert all(row.steps >= 6 for row in found.steps)
    [failed] = [use for use in found.memory if use.outcome != "ok"]
    assert (failed.local_batch, failed.outcome, failed.peak_bytes) == (64, outcome, None)
    assert [pilot.global_batch for pilot in found.pilots] == [32, 128]  # the larger one by accumulation
    assert found.noise.large_batch == 128
    assert any("64" in warning for warning in found.warnings)


def test_where_no_time_is_left_to_start_again_it_is_said_what_is_missing(tmp_path):
    """Elsewhere a search cut short by a failure reports that everything was measured."""
    collector = Collector(silent, 30.0)
    collector.begin(ONE)
    shape = {"nodes": 1, "processes_per_node": 1}
    collector.steps[ONE, 64] = dataclasses.replace(make_profile().steps[0], steps=2, **shape)
    collector.start_up[ONE] = StartUp(**shape, seconds=15.0)
    collector.record_failed("out_of_memory", 128)
    collector._began_s -= 15.0
    job = make_job({"probe": {"seconds": 30}})
    probe = Probe(
        job=job,
        facts=make_facts(),
        hardware=make_hardware(),
        folder=tmp_path,
        collector=collector,
        pilot_world=ONE,
    )
    _measure_world(probe, ONE, 1.0, 0)
    assert not list(tmp_path.iterdir())  # nothing was started
    assert "15 s of the budget were left" in _why_stopped(probe)
    [said] = [text for text in collector.warnings if "not measured to the end" in text]
    assert "a local batch of 128 did not fit" in said and "timed for 2 to 2 steps, and no pilot was run" in said


def test_nothing_that_fits_is_an_error_with_the_size(tmp_path):
    with pytest.raises(OutOfMemoryError, match="local batch of 1 on 1 process"):
        measured(tmp_path, "never_fits", recipe={"batch_size": 2}, constraints={"max_local_batch": 1})


def test_a_wrong_label_is_reported_as_itself(tmp_path):
    with pytest.raises(RunError, match=r"Target 99 is out of bounds.*local batch of \d+ on 1 process") as caught:
        measured(tmp_path, "wrong_label")
    assert not isinstance(caught.value, OutOfMemoryError)
    assert "cross_entropy" in "".join(caught.value.__notes__)


def test_a_limit_on_memory_stops_the_sizes_and_a_rate_too_high_the_pilots(tmp_path):
    found = measured(tmp_path, "diverging", recipe={"learning_rate": 1e30}, constraints={"memory": "1MB"})
    assert [row.local_batch for row in found.steps] == [2]  # even this is above the limit: no other is tried
    assert found.memory[0].outcome == "ok"  # of the machine's memory there is enough, and limits of a job may change
    assert any("forecast exceeds the memory" in warning for warning in found.warnings)
    assert found.probe.stopped_because == "all configurations are measured"
    assert [pilot.global_batch for pilot in found.pilots] == [32, 128]
    assert all(pilot.diverged for pilot in found.pilots)
    assert any("diverged" in warning for warning in found.warnings)


def test_a_worker_that_dies_before_it_measures_is_no_data_point(tmp_path):
    with pytest.raises(RunError, match="was killed"):
        measured(tmp_path, "dies_while_loading")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_short_probe_stops_with_what_it_has(tmp_path):
    found = measured(tmp_path, "slow", probe={"seconds": 3})
    check_profile(found)
    assert found.probe.stopped_because == "the budget of 3 s is used"
    assert found.steps[0].step_time_error_s > 0
    assert found.probe.used_s <= max(1.2 * 3, found.start_up[0].seconds + 15)
    assert max(row.local_batch for row in found.steps) < 512


def test_workers_have_little_more_than_the_probe_once_a_step_is_known(tmp_path):
    """Only the first step of all is waited for; what hangs or is slow after it ends with the probe."""
    collector = Collector(silent, 10.0)
    job = make_job({"probe": {"seconds": 10}})
    probe = Probe(
        job=job, facts=make_facts(), hardware=make_hardware(), folder=tmp_path, collector=collector, pilot_world=ONE
    )
    limit_s = _time_limit(probe)
    assert limit_s() == 600
    collector.first_heard_s = 4.0
    assert limit_s() == pytest.approx(12.0, abs=0.5)
    collector.first_heard_s = 40.0  # a first step that took longer than the probe
    assert 40 < limit_s() < 50


def test_a_profile_completes_a_job_of_the_same_workload(two_processes):
    job, resolved, found, _, _ = two_processes
    assert complete(job, found) == resolved
    dearer = job.model_copy(update={"cluster": job.cluster.model_copy(update={"price_per_node_hour": 2.0})})
    assert complete(dearer, found).recipe == resolved.recipe
    with pytest.raises(InputError, match="workload: is 'digits-cnn'"):
        complete(Job.builtin("digits-cnn"), found)
    other = Job.from_mapping({"workload": job.workload, "recipe": {"batch_size": 64}})
    with pytest.raises(InputError, match=r"recipe\.batch_size: is 64"):
        complete(other, found)


def test_other_precisions_are_timed_in_turns_with_the_recipes(tmp_path):
    found = measured(tmp_path, "tiny", precisions=["fp32", "bf16", "fp16"], probe={"seconds": 60})
    check_profile(found)
    assert {timing.precision for timing in found.precisions} == {"bf16", "fp16"}
    for timing in found.precisions:
        assert timing.outcome == "ok", timing.failure
        assert timing.compute_s > 0 and timing.reference_compute_s > 0
        assert 0 < timing.ratio_error < 1
        assert timing.peak_bytes > 0
        assert timing.loss_difference < 0.1
    assert found.content is not None and found.content.sd_bytes == 0
    assert from_json(type(found), to_json(found), source="profile") == found


def test_a_precision_that_a_network_cannot_take_says_nothing_of_its_own(tmp_path):
    found = measured(tmp_path, "only_fp32", precisions=["bf16"], probe={"seconds": 60})
    [failed] = found.precisions
    assert (failed.outcome, failed.compute_s) == ("failed", None)
    assert "sixteen bits" in failed.failure
    assert all(use.outcome == "ok" for use in found.memory)
    assert any("bf16 failed" in warning for warning in found.warnings)
