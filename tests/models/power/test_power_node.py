from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import make_job, make_profile
from tula_core.errors import InputError
from tula_core.job import Cluster
from tula_core.models.power.limit import limit_effect
from tula_core.models.power.node import fit_node_power
from tula_core.models.predictor import fit
from tula_core.records import Candidate, PowerUse, from_json, to_json
from tula_core.records.profile import Profile


def use(processes: int = 1, local_batch: int = 64, node_w: float = 400.0, **more) -> PowerUse:
    rest = {"seconds": 5.0, "source": "fake counter", "accelerator_w": 250.0, "limit_w": 300.0} | more
    return PowerUse(nodes=1, processes_per_node=processes, local_batch=local_batch, node_w=node_w, **rest)


def node(*power: PowerUse, **cluster):
    return fit_node_power(power, make_profile().steps, Cluster(processes_per_node=2, **cluster))


def test_power_is_as_measured_there_and_surer_than_elsewhere():
    measured = node(use(1, 64, 300.0), use(2, 64, 500.0), use(2, 256, 540.0))
    watts, log_sd = measured.watts(np.array([1.0, 2.0, 8.0]), np.array([64.0, 256.0, 4096.0]))
    assert watts[:2] == pytest.approx([300.0, 540.0], rel=0.1)
    assert watts[2] > 500.0
    assert log_sd[2] > 2 * log_sd[1] > 0


def test_one_measured_row_serves_all_with_growing_doubt():
    watts, log_sd = node(use()).watts(np.array([1.0, 1.0, 4.0]), np.array([64.0, 1024.0, 64.0]))
    assert watts[0] == pytest.approx(400.0)
    assert (np.diff(log_sd) > 0).all() and np.isfinite(watts).all()


def test_nothing_known_is_said_and_the_jobs_figure_is_exact():
    assert not node().known
    stated = node(power_watts=300.0)
    watts, log_sd = stated.watts(np.array([2.0]), np.array([8.0]))
    assert (watts[0], log_sd[0]) == (300.0, 0.0)


@given(st.floats(100, 300), st.floats(100, 300), st.floats(80, 300), st.floats(0.0, 1.0))
def test_a_lower_limit_is_never_faster_and_never_draws_more(one, other, demand, host_share):
    low, high = (limit_effect(limit, 300.0, demand, host_share) for limit in sorted((one, other)))
    assert low.time_factor >= high.time_factor * (1 - 1e-5) >= 1 - 1e-5
    assert low.power_factor <= high.power_factor * (1 + 1e-4) <= 1 + 1e-4


def test_the_present_limit_changes_nothing_and_waiting_for_the_host_hides_a_low_one():
    none = limit_effect(300.0, 300.0, 250.0, 0.0)
    assert (none.time_factor, none.power_factor, none.time_log_sd) == (1.0, 1.0, 0.0)
    busy, waiting = (limit_effect(150.0, 300.0, 250.0, share) for share in (0.0, 0.9))
    assert busy.time_factor > 1.1 > waiting.time_factor
    assert busy.time_log_sd > 0.02


def test_a_limited_candidate_is_slower_draws_less_and_is_less_sure():
    profile = make_profile(power=(use(),))
    job = make_job(cluster=Cluster(power_limits_w=(150.0, 200.0)))
    predictor = fit(profile, job)
    free, mild, hard = predictor.forecast(
        [
            Candidate(nodes=1, processes_per_node=1, local_batch=64, power_limit_w=limit)
            for limit in (None, 200.0, 150.0)
        ]
    )
    times, energies = ([row[name].value for row in (free, mild, hard)] for name in ("time_to_train_s", "energy_j"))
    assert times[0] < times[1] < times[2]
    assert hard.feasible and hard["step_time_s"].high / hard["step_time_s"].value > 1.05
    powers = [energy / time for energy, time in zip(energies, times, strict=True)]
    assert powers[0] > powers[1] > powers[2]
    assert free["memory_bytes"] == hard["memory_bytes"]
    assert any("rest on a law of clock and power" in sentence for sentence in predictor.assumptions)


def test_energy_comes_from_the_meter_and_its_doubt_widens_the_interval():
    stated = fit(make_profile(), make_job(cluster=Cluster(power_watts=400.0)))
    metered = fit(make_profile(power=(use(),)), make_job(cluster=Cluster(power_watts=900.0)))
    candidate = [Candidate(nodes=1, processes_per_node=1, local_batch=64)]
    one, other = stated.forecast(candidate)[0]["energy_j"], metered.forecast(candidate)[0]["energy_j"]
    assert other.value == pytest.approx(one.value, rel=1e-6)
    assert other.high > one.high and other.low < one.low
    assert any("power_watts of 900 W is not used" in sentence for sentence in metered.assumptions)
    assert any("fake counter" in sentence for sentence in metered.assumptions)


def test_meters_that_disagree_are_said():
    # A counter that says 187 J and samples that say 327 J for the same five seconds.
    row = use(counter_w=187 / 5, integrated_w=327 / 5)
    assert row.disagreement == pytest.approx(327 / 187 - 1)
    told = " ".join(fit(make_profile(power=(row,)), make_job()).assumptions)
    assert "disagree by up to 75 %" in told and "the counter is used" in told
    agreeing = use(counter_w=100.0, integrated_w=105.0)
    assert "disagree" not in " ".join(fit(make_profile(power=(agreeing,)), make_job()).assumptions)


@pytest.mark.parametrize(
    ("field", "value"), [("node_w", float("nan")), ("node_w", 0.0), ("accelerator_w", -1.0), ("limit_w", float("inf"))]
)
def test_impossible_power_is_refused_by_field(field, value):
    with pytest.raises(InputError, match=rf"profile\.power\[0\]\.{field}"):
        fit(make_profile(power=(dataclasses.replace(use(), **{field: value}),)), make_job())


def test_a_profile_keeps_its_power_and_older_ones_have_none():
    profile = make_profile(power=(use(),))
    text = to_json(profile)
    assert from_json(Profile, text, source="test") == profile
    older = text[: text.rindex(',\n  "power"')] + "\n}\n"
    assert from_json(Profile, older, source="test").power == ()


def test_an_impossible_limit_of_a_candidate_is_refused():
    predictor = fit(make_profile(power=(use(),)), make_job())
    with pytest.raises(InputError, match="power_limit_w"):
        predictor.forecast([Candidate(nodes=1, processes_per_node=1, local_batch=8, power_limit_w=0.0)])
