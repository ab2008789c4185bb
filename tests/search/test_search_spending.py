from __future__ import annotations

import dataclasses

import pytest
from search_fakes import FakePredictor, around, job, profile

from tula_core.errors import InputError
from tula_core.records import Candidate, PowerUse, Row
from tula_core.search.api import make_plan
from tula_core.search.space import candidates, key, power_limits, reference_key
from tula_core.search.words import describe

BOTH = {"price_per_node_hour": 2.0, "spot_price_per_node_hour": 0.5, "spot_interruptions_per_hour": 1.0}


def spot_row(time_s: float, cost: float) -> Row:
    return Row(
        candidate=Candidate(nodes=1, processes_per_node=1, local_batch=64),
        feasible=True,
        infeasible_because=None,
        measured=True,
        forecast={"time_to_train_s": around(time_s), "cost_usd": around(cost)},
    )


def plan(spot: Row | None = None, watts: float | None = None, constraints=None, **cluster):
    asked = job(cluster=cluster, constraints=constraints or {})
    predictor = FakePredictor(price=2.0, watts=watts, spot=spot)
    return make_plan(profile(), asked, predictor, mitigation=())


@pytest.mark.parametrize(
    ("cost", "constraints", "said"),
    [
        (0.001, {}, "leave cluster.price_per_node_hour out to plan on them"),
        (500.0, {}, "they do not pay"),
        (0.001, {"deadline": "29h"}, "but may miss the deadline of 29 h"),
    ],
)
def test_spot_nodes_are_compared_in_the_reason(cost, constraints, said):
    made = plan(spot_row(100_000.0, cost), constraints=constraints, **BOTH)
    assert "On spot nodes, restarts counted, it would take 27.8 h (25.0 to 30.6 h)" in made.reason
    assert said in made.reason
    assert made.facts["spot"]["cost_usd"] == cost and made.facts["spot"]["time_to_train_s_high"] > 100_000


def test_without_a_comparison_nothing_is_said_of_spot():
    made = plan(**BOTH)
    assert "spot" not in made.reason and "spot" not in made.facts


def test_carbon_follows_energy_and_the_stated_grid():
    made = plan(watts=100.0, carbon_g_per_kwh=400.0)
    energy = made.choice["energy_j"]
    assert made.facts["carbon_g"]["value"] == pytest.approx(energy.value / 3.6e6 * 400)
    assert made.facts["carbon_g"]["high"] == pytest.approx(energy.high / 3.6e6 * 400)
    assert "of CO2, at 400 g per kWh" in made.reason
    unknown = plan(carbon_g_per_kwh=400.0)
    assert "carbon of the choice is unknown" in unknown.reason and "carbon_g" not in unknown.facts
    assert "CO2" not in plan(watts=100.0).reason


def test_power_limits_are_offered_only_where_they_are_listed_and_below_the_present_one():
    plain = candidates(profile(device="cuda"), job(), FakePredictor(), ())
    assert {c.power_limit_w for c in plain} == {None}
    asked = job(cluster={"power_limits_w": [200, 150, 300]})
    found = candidates(profile(device="cuda"), asked, FakePredictor(), ())
    assert {c.power_limit_w for c in found} == {None, 150.0, 200.0}
    assert len(found) == 3 * len(plain)
    assert len({key(c) for c in found}) == len(found)
    assert reference_key(found, 64)[6] == 0.0
    use = PowerUse(
        nodes=1,
        processes_per_node=1,
        local_batch=8,
        seconds=1.0,
        node_w=300.0,
        source="x",
        accelerator_w=200.0,
        limit_w=250.0,
    )
    assert power_limits(profile(device="cuda", power=(use,)), asked.cluster) == [150.0, 200.0]


def test_a_budget_that_only_unknown_energy_could_break_is_refused():
    asked = {"cluster": {"electricity_usd_per_kwh": 0.3}, "constraints": {"budget_usd": 5}}
    with pytest.raises(InputError, match=r"cluster\.power_watts"):
        make_plan(profile(), job(**asked), FakePredictor(), mitigation=())
    asked["cluster"]["power_watts"] = 100
    assert make_plan(profile(), job(**asked), FakePredictor(price=2.0), mitigation=()).choice is not None


def test_power_limits_without_an_accelerator_are_refused():
    with pytest.raises(InputError, match=r"cluster\.power_limits_w.*no accelerator"):
        make_plan(profile(), job(cluster={"power_limits_w": [150]}), FakePredictor(), mitigation=())


class Limited(FakePredictor):
    """A limit of L watts of 300 saves energy and takes longer."""

    def quantities(self, c):
        found = super().quantities(c)
        share = 1.0 if c.power_limit_w is None else c.power_limit_w / 300
        for name in ("step_time_s", "time_to_train_s", "node_hours", "cost_usd"):
            found[name] = None if found[name] is None else found[name] / share**0.5
        found["energy_j"] = found["energy_j"] * share**0.5
        return found


def limited(objective):
    asked = job(cluster={"power_limits_w": [150, 300]}, objective=objective)
    return make_plan(profile(device="cuda"), asked, Limited(price=2.0, watts=100.0), mitigation=())


def test_least_energy_takes_a_limit_and_names_the_command_that_sets_it():
    made = limited("energy")
    assert made.choice.candidate.power_limit_w == 150.0
    assert "limited to 150 W" in made.reason
    assert "sudo nvidia-smi --power-limit=150" in made.reason and "never sets it" in made.reason
    assert made.to_dict()["choice"]["power_limit_w"] == 150.0
    assert limited("time").choice.candidate.power_limit_w is None
    assert "nvidia-smi" not in limited("time").reason


def test_equal_candidates_are_taken_without_a_limit():
    made = make_plan(
        profile(device="cuda"), job(cluster={"power_limits_w": [150, 300]}), FakePredictor(price=2.0), mitigation=()
    )
    assert made.choice.candidate.power_limit_w is None
    limit = dataclasses.replace(made.choice.candidate, power_limit_w=150.0)
    assert describe(limit) != describe(made.choice.candidate)


def test_a_large_grid_with_limits_is_searched_too():
    asked = job({"batch_size": 96}, cluster={"nodes": 8, "processes_per_node": 8, "power_limits_w": [150, 200, 300]})
    made = make_plan(profile(device="cuda"), asked, Limited(price=2.0, watts=100.0), mitigation=())
    assert made.facts["grid"] > 512
    assert {row.candidate.power_limit_w for row in made.table} == {None, 150.0, 200.0}
