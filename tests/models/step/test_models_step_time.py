import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import TRUTH, make_profile, make_step, relative_error, true_step_time_s
from tula_core.errors import InputError
from tula_core.models.inference.fitting import Z90
from tula_core.models.step.communication import bucket_count, fit_links, ring_all_reduce_s
from tula_core.models.step.fit import fit_step_time
from tula_core.models.step.methods import predict_with_methods, seconds_with_methods
from tula_core.models.step.time import Shapes
from tula_core.records import Candidate, CommunicationTiming


def model_of(rows, communication=None, link_gbps=None):
    profile = make_profile()
    messages = profile.communication if communication is None else communication
    links = fit_links(messages, device="cpu", link_gbps=link_gbps)
    return fit_step_time(rows, links, device="cpu", gradient_bytes=profile.facts.gradient_bytes)


def shapes(*configurations):
    names = ("nodes", "processes_per_node", "local_batch", "accumulation")
    return Shapes.of([Candidate(**dict(zip(names, c, strict=True))) for c in configurations])


def predict(model, *configuration):
    time_s, log_sd = model.predict(shapes(configuration))
    return float(time_s[0]), float(log_sd[0])


def test_ring_all_reduce_laws():
    args = {"message_bytes": np.array(1e6), "latency_s": np.array(0.0)}
    assert ring_all_reduce_s(np.array(1.0), np.array(1e6), np.array(1.0), np.array(1e9)) == 0.0
    assert ring_all_reduce_s(np.array(2.0), bandwidth=np.array(1e9), **args) == pytest.approx(1e-3)
    half = ring_all_reduce_s(np.array(8.0), bandwidth=np.array(2e9), **args)
    assert 2 * half == pytest.approx(ring_all_reduce_s(np.array(8.0), bandwidth=np.array(1e9), **args))
    times = ring_all_reduce_s(np.arange(1.0, 9.0), np.array(1e6), np.array(1e-5), np.array(1e9))
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize(("size", "buckets"), [(0, 0), (1, 1), (2**20, 1), (2**20 + 1, 2), (27 * 2**20, 3)])
def test_bucket_count(size, buckets):
    assert bucket_count(size) == buckets


def test_links_recover_latency_and_bandwidth():
    link = fit_links(make_profile().communication, device="cpu", link_gbps=None).inside
    assert link.measured
    assert np.exp(link.posterior["log_latency"]) == pytest.approx(TRUTH["latency_s"], rel=0.1)
    assert np.exp(link.posterior["log_bandwidth"]) == pytest.approx(TRUTH["bandwidth"], rel=0.1)


def test_unmeasured_links_follow_the_job_and_say_so():
    given_link = fit_links((), device="cpu", link_gbps=1.0).between
    assumed = fit_links((), device="cpu", link_gbps=None).between
    assert np.exp(given_link.posterior["log_bandwidth"]) == pytest.approx(0.8e9 / 8)
    assert "link_gbps = 1" in given_link.assumption
    assert "10 Gbit/s assumed" in assumed.assumption
    assert assumed.posterior.sd("log_bandwidth") > given_link.posterior.sd("log_bandwidth")


def test_measured_messages_between_nodes_overrule_the_link():
    rows = [
        CommunicationTiming(nodes=2, processes_per_node=1, message_bytes=size, time_s=1e-3 + size / 1e8)
        for size in (1000, 10**5, 10**7)
    ]
    link = fit_links(rows, device="cpu", link_gbps=100.0).between
    assert link.measured
    assert np.exp(link.posterior["log_bandwidth"]) == pytest.approx(1e8, rel=0.15)


@pytest.mark.parametrize(
    "configuration", [(1, 1, 16, 1), (1, 1, 32, 1), (1, 1, 128, 1), (1, 2, 64, 1), (1, 2, 100, 1), (1, 1, 64, 4)]
)
def test_recovers_the_truth_between_measurements(configuration):
    time_s, log_sd = predict(model_of(make_profile().steps), *configuration)
    assert relative_error(time_s, true_step_time_s(*configuration)) < 0.04
    assert 0.05 <= log_sd < 0.12


@pytest.mark.parametrize("configuration", [(1, 1, 1, 1), (1, 1, 1024, 1), (1, 4, 64, 1), (4, 2, 64, 1)])
def test_extrapolation_covers_the_truth(configuration):
    time_s, log_sd = predict(model_of(make_profile().steps), *configuration)
    assert relative_error(time_s, true_step_time_s(*configuration)) < 1.6449 * log_sd


def test_one_measurement_is_met_there_and_wide_elsewhere():
    model = model_of([make_step(1, 1, 64)])
    here, sd_here = predict(model, 1, 1, 64, 1)
    there, sd_there = predict(model, 1, 1, 1024, 1)
    assert relative_error(here, true_step_time_s(1, 1, 64)) < 0.03
    assert sd_there > 3 * sd_here
    assert relative_error(there, true_step_time_s(1, 1, 1024)) < 1.6449 * sd_there


def test_intervals_grow_with_distance():
    model = model_of(make_profile().steps)
    sds = [predict(model, 1, 1, 256 * 2**octave, 1)[1] for octave in range(8)]
    assert sds == sorted(sds)


def test_a_dip_in_throughput_is_kept():
    rows = [make_step(1, 1, 16), make_step(1, 1, 32, factor=1.6), make_step(1, 1, 64), make_step(1, 1, 128)]
    model = model_of(rows)
    rate = {b: b / predict(model, 1, 1, b, 1)[0] for b in (16, 32, 64)}
    assert rate[32] < rate[16] < rate[64]


def test_duplicates_narrow_and_contradictions_widen():
    once = model_of([make_step(1, 1, 64)])
    same = model_of([make_step(1, 1, 64)] * 4)
    torn = model_of([make_step(1, 1, 64), make_step(1, 1, 64, factor=3.0)])
    truth = true_step_time_s(1, 1, 64)
    assert predict(same, 1, 1, 64, 1)[1] <= predict(once, 1, 1, 64, 1)[1]
    assert truth < predict(torn, 1, 1, 64, 1)[0] < 3 * truth
    assert predict(torn, 1, 1, 64, 1)[1] > 2 * predict(once, 1, 1, 64, 1)[1]


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-5, 1e5))
def test_a_faster_machine_changes_the_scale_alone(factor):
    base = model_of([make_step(1, 1, b) for b in (16, 64, 256)])
    other = model_of([make_step(1, 1, b, factor=factor) for b in (16, 64, 256)])
    assert predict(other, 1, 1, 100, 1)[0] == pytest.approx(factor * predict(base, 1, 1, 100, 1)[0], rel=0.02)


def test_accumulation_costs_a_micro_batch_each():
    model = model_of(make_profile().steps)
    times = [predict(model, 1, 2, 64, a)[0] for a in (1, 2, 3, 4)]
    assert np.diff(times) == pytest.approx(TRUTH["floor_s"] + 64 * TRUTH["slope_s"], rel=0.1)


def test_measured_means_that_very_configuration():
    model = model_of(make_profile().steps)
    found = model.is_measured(shapes((1, 1, 64, 1), (1, 1, 64, 2), (1, 1, 65, 1), (2, 1, 64, 1), (1, 2, 256, 1)))
    assert found.tolist() == [True, False, False, False, True]


def test_seconds_alone_are_those_of_the_forecast():
    model, asked = model_of(make_profile().steps), shapes((1, 1, 64, 1), (4, 3, 17, 2), (64, 8, 4000, 1))
    plain = model.predict(asked)[0]
    assert model.seconds(asked) == pytest.approx(plain, rel=1e-12)
    for cost in (1.0, 1.7):
        costly = predict_with_methods(model, asked, cost)[0]
        assert seconds_with_methods(model, asked, cost) == pytest.approx(costly, rel=1e-12)


def test_first_step_extra_comes_from_the_nearest_measured_the_first_of_those_as_near():
    model = model_of(make_profile().steps)
    assert model.first_step_extra_s(shapes((1, 2, 70, 1)))[0] == pytest.approx(0.2)
    slow = dataclasses.replace(make_step(1, 1, 256), first_step_s=9.0)
    for rows in ([make_step(1, 1, 16), slow], [slow, make_step(1, 1, 16)]):
        first = rows[0].first_step_s - rows[0].step_time_s
        assert model_of(rows).first_step_extra_s(shapes((1, 1, 64, 1)))[0] == pytest.approx(first)


def test_a_machine_whose_speed_changed_during_the_probe_gets_wide_intervals():
    rows = make_profile().steps
    steady = model_of(rows)
    shaky = model_of([dataclasses.replace(row, block_scatter=0.3) for row in rows])
    assert predict(shaky, 1, 1, 64, 1)[0] == pytest.approx(predict(steady, 1, 1, 64, 1)[0])
    assert predict(shaky, 1, 1, 64, 1)[1] > 0.3 > predict(steady, 1, 1, 64, 1)[1]


def test_a_run_on_a_machine_that_is_now_busy_now_idle_lies_in_its_interval():
    generator = np.random.default_rng(3)
    inside, runs = 0, 30
    for _ in range(runs):
        timed = []
        for local_batch in (8, 16, 32, 64, 128):
            blocks = np.exp(0.3 * generator.standard_normal(3))
            error = float(blocks.std(ddof=1) / np.sqrt(3) / blocks.mean())
            row = make_step(local_batch=local_batch, factor=float(blocks.mean()))
            scatter = float(np.log(blocks).std(ddof=1))
            timed.append(dataclasses.replace(row, step_time_error_s=error * row.step_time_s, block_scatter=scatter))
        value, log_sd = predict(model_of(timed), 1, 1, 32, 1)
        run_s = true_step_time_s(1, 1, 32) * np.exp(0.3 * generator.standard_normal())
        inside += abs(np.log(run_s / value)) <= Z90 * log_sd
    assert inside / runs >= 0.8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_impossible_times_are_refused(value):
    with pytest.raises(InputError, match=r"steps\[1\]\.step_time_s"):
        model_of([make_step(), dataclasses.replace(make_step(local_batch=64), step_time_s=value)])


def test_no_measurement_is_refused():
    with pytest.raises(InputError, match="no timed configuration"):
        model_of([])
