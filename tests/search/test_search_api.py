from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import GIB, FakePredictor, job, profile, timing

import tula_core.search
from tula_core.errors import InputError
from tula_core.records import Plan, from_json, load, save
from tula_core.search.api import make_plan
from tula_core.search.table import display_rows

CLUSTER = {"nodes": 4, "processes_per_node": 2}


def plan_of(asked=None, predictor=None, measured=None, **changes):
    options = {"mitigation": ("linear-lr", "warmup"), **changes}
    return make_plan(measured or profile(), asked or job(cluster=CLUSTER), predictor or FakePredictor(), **options)


def test_a_plan_holds_table_front_knee_choice_and_reason(tmp_path):
    heard = []
    plan = plan_of(cached=True, storage=tmp_path / "study.journal", listener=heard.append)
    assert plan.choice in plan.table and plan.choice.feasible and plan.knee in plan.pareto
    assert plan.choice.candidate.mitigation == ("linear-lr", "warmup")
    assert plan.facts["evaluated"] == plan.facts["grid"] == len(plan.table)
    assert plan.facts["profile_fingerprint"] == profile().fingerprint and plan.facts["reference_batch"] == 64
    assert plan.hardware["device_name"] == "fake" and plan.probe.cached and plan.probe.seconds == 36
    assert "The forecast is a closed form." in plan.assumptions
    assert any("Without a price" in text for text in plan.assumptions)
    assert (tmp_path / "study.journal").stat().st_size > 0
    assert {event.stage for event in heard} == {"search"} and heard[-1].fraction == 1.0


def test_a_plan_holds_what_its_choice_is_expected_to_show_at_each_epoch():
    made = plan_of()
    curve = made.facts["expected_curve"]
    assert [epochs for epochs, *_ in curve] == [1, 2, 3] and all(low < value < high for _, low, value, high in curve)
    assert plan_of(predictor=FakePredictor(accuracy_known=False)).facts["expected_curve"] is None


def test_a_plan_comes_back_from_its_file_as_it_was(tmp_path):
    plan = plan_of(job(cluster={**CLUSTER, "price_per_node_hour": 2.0}), FakePredictor(price=2.0))
    save(plan, tmp_path / "plan.json")
    assert load(Plan, tmp_path / "plan.json") == plan
    assert not re.search(r"\b(NaN|Infinity)\b", plan.to_json())


def test_two_fresh_processes_make_the_same_bytes():
    script = (
        "import sys; sys.path.insert(0, 'tests/search')\n"
        "from test_search_api import plan_of\n"
        "sys.stdout.write(plan_of().to_json())"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == plan_of().to_json().encode()


def test_what_was_assumed_while_loading_is_in_the_plan():
    loaded = profile()
    loaded = dataclasses.replace(loaded, facts=dataclasses.replace(loaded.facts, notes=("a tenth evaluates",)))
    assert "a tenth evaluates" in plan_of(measured=loaded).assumptions


def test_warnings_of_the_profile_and_the_probes_cost_are_in_the_plan():
    asked = job(cluster={**CLUSTER, "price_per_node_hour": 100.0})
    plan = plan_of(asked, FakePredictor(price=100.0), profile(warnings=("the machine was busy",)))
    assert "While measuring: the machine was busy" in plan.assumptions
    assert plan.probe.cost_usd == pytest.approx(1.0) and plan.probe.stopped_because == "answered"
    assert "Measuring ended after 36.0 s: answered." in plan.assumptions


@pytest.mark.parametrize("objective", ["knee", "time", "cost", {"time": 0.5, "cost": 0.5}])
def test_cost_never_falls_as_the_price_rises(objective):
    costs = []
    for price in (0.1, 1.0, 3.0, 10.0):
        asked = job(cluster={**CLUSTER, "price_per_node_hour": price}, objective=objective)
        costs.append(plan_of(asked, FakePredictor(price=price)).choice["cost_usd"].value)
    assert costs == sorted(costs)


@given(
    objective=st.sampled_from(["time", "cost"]),
    deadlines=st.tuples(st.integers(40, 400), st.integers(0, 400)),
    memories=st.tuples(st.integers(600, 4000), st.integers(0, 4000)),
    floors=st.tuples(st.floats(0.8, 0.95), st.floats(0, 0.1)),
)
@settings(max_examples=15, deadline=None)
def test_a_tighter_limit_never_makes_the_choice_better(objective, deadlines, memories, floors):
    def best(deadline, memory, floor):
        constraints = {"deadline": deadline, "memory": memory * 2**20, "min_accuracy": floor}
        chosen = plan_of(job(cluster=CLUSTER, objective=objective, constraints=constraints)).choice
        quantity = "time_to_train_s" if objective == "time" else "node_hours"
        return float("inf") if chosen is None else chosen[quantity].value

    tight = best(deadlines[0], memories[0], floors[0])
    loose = best(sum(deadlines), sum(memories), max(floors[0] - floors[1], 0))
    assert loose <= tight


def test_scaling_is_advised_against_where_it_does_not_pay():
    plan = plan_of(job(cluster={"processes_per_node": 2}), FakePredictor(latency_s=0.1))
    assert plan.choice.candidate.processes == 1
    assert re.search(r"Do not scale: the fastest with more processes, .* is \d+ % slower", plan.reason)


def test_a_smaller_batch_than_the_reference_is_a_normal_answer():
    predictor = FakePredictor(floor_s=1e-5, critical_batch=20.0)
    plan = plan_of(job({"batch_size": 256}), predictor)
    assert plan.choice.candidate.global_batch < 256


def test_batches_that_lose_accuracy_are_ruled_out_without_a_target_unless_the_user_says_otherwise():
    predictor = FakePredictor(critical_batch=1e9, accuracy_loss=1e-4)
    guarded = plan_of(job(objective="time"), predictor)
    assert guarded.choice.candidate.global_batch <= 164 and any(
        "margin of a hundredth" in a for a in guarded.assumptions
    )
    allowed = plan_of(job(objective="time", constraints={"min_accuracy": 0.5}), predictor)
    assert allowed.choice.candidate.global_batch >= 2048
    aimed = plan_of(job(objective="time", target={"value": 0.5}), predictor)
    assert aimed.choice.candidate.global_batch >= 2048
    blind = plan_of(job(), FakePredictor(accuracy_known=False))
    assert blind.choice is not None and any(
        "accuracy of the reference batch is unknown" in a for a in blind.assumptions
    )


@pytest.mark.parametrize(
    ("constraints", "price"),
    [({"deadline": "10s"}, None), ({"budget_usd": 0.001}, 2.0), ({"deadline": "5m", "memory": "100MiB"}, None)],
)
def test_an_infeasible_plan_names_the_limit_that_would_admit_and_it_does(constraints, price):
    cluster = {**CLUSTER, "price_per_node_hour": price}
    plan = plan_of(job(cluster=cluster, constraints=constraints), FakePredictor(price=price))
    assert plan.choice is None and plan.pareto == () and plan.knee is None and plan.facts["nearest"] is not None
    assert all(row.infeasible_because for row in plan.table)
    remedies = dict(re.findall(r"Raise constraints\.(\w+) to (\d+(?:\.\d+)?\w*)", plan.reason))
    assert remedies
    typed = {name: float(value) if name == "budget_usd" else value for name, value in remedies.items()}
    mended = plan_of(job(cluster=cluster, constraints={**constraints, **typed}), FakePredictor(price=price))
    assert mended.choice is not None
    assert from_json(Plan, plan.to_json(), source="plan") == plan


def test_a_data_set_smaller_than_any_batch_leaves_no_choice_and_says_why():
    plan = plan_of(measured=profile(10))
    assert plan.choice is None and "larger than the data set of 10 training samples" in plan.reason
    assert "Set recipe.batch_size to at most 10" in plan.reason
    assert plan_of(job({"batch_size": 10}), measured=profile(10)).choice is not None


def test_a_target_that_nothing_is_expected_to_reach_leaves_a_choice_and_a_warning():
    """A short probe may be wrong about a target; a limit that rules everything out would end the job for it."""
    plan = plan_of(job(target={"value": 0.99}, recipe={"epochs": 3}), FakePredictor(chance=0.1))
    assert plan.choice is not None
    assert "Beware: the target accuracy 0.99 is not expected within 3 epochs (chance at best 0.10)" in plan.reason
    assert any("No target is within reach" in assumption for assumption in plan.assumptions)
    rest = plan_of(job(target="none", recipe={"epochs": 3}), FakePredictor(chance=0.1))
    assert plan.choice.candidate == rest.choice.candidate


def test_a_target_within_reach_has_its_chance_in_the_reason():
    reason = plan_of(job(target={"value": 0.9}, recipe={"epochs": 3}), FakePredictor(chance=0.876)).reason
    assert reason.endswith("It reaches the target accuracy 0.9 within 3 epochs with a chance of 87 %.")
    assert "target" not in plan_of(job(target="none"), FakePredictor(chance=0.876)).reason


def test_every_row_names_its_own_reason():
    asked = job(cluster=CLUSTER, constraints={"deadline": "100s", "min_accuracy": 0.94})
    reasons = {row.infeasible_because for row in plan_of(asked).table}
    assert any("deadline" in r for r in reasons if r) and any("least accuracy" in r for r in reasons if r)
    assert any("deadline" in r and "least accuracy" in r for r in reasons if r) or None in reasons


def test_refusals_reach_the_caller():
    with pytest.raises(InputError, match="price_per_node_hour"):
        plan_of(job(constraints={"budget_usd": 3}))
    with pytest.raises(InputError, match="power_watts"):
        plan_of(job(objective="energy"))
    assert plan_of(job(objective="energy"), FakePredictor(watts=50.0)).choice is not None


def test_the_reason_gives_the_chance_of_each_limit_and_of_both():
    priced = FakePredictor(price=2.0)
    free = plan_of(job(cluster={**CLUSTER, "price_per_node_hour": 2.0}), priced).choice
    limits = {"deadline": free["time_to_train_s"].value * 1.1, "budget_usd": free["cost_usd"].value * 1.06}
    plan = plan_of(job(cluster={**CLUSTER, "price_per_node_hour": 2.0}, constraints=limits), priced)
    assert re.search(
        r"It keeps the deadline of [\d.]+ \w+ with a chance of \d\d % and the budget of [\d.]+ ¢ with a chance of "
        r"\d\d %; deadline and budget together with \d\d %\.",
        plan.reason,
    )
    chances = [int(found) for found in re.findall(r"(\d\d) %[ ;.]", plan.reason)[:3]]
    assert chances[2] == min(chances[:2]) >= 80
    sure = plan_of(job(cluster=CLUSTER, constraints={"deadline": "100h", "min_accuracy": 0.1})).reason
    assert (
        "the deadline of 100 h with a chance of over 99 % and the least accuracy of 0.1 with a chance of over" in sure
    )


def test_a_deadline_that_is_kept_only_at_the_value_leaves_no_choice_until_the_confidence_is_lowered():
    constraints = {"deadline": plan_of(job(cluster=CLUSTER, objective="time")).choice["time_to_train_s"].value * 1.01}
    refused = plan_of(job(cluster=CLUSTER, constraints=constraints))
    assert refused.choice is None and "with a chance of 56 % only" in refused.reason
    plan = plan_of(job(cluster=CLUSTER, constraints={**constraints, "confidence": 0.55}))
    assert plan.choice is not None and "with a chance of 56 %" in plan.reason


@given(st.floats(0.5, 0.99), st.floats(0, 0.49), st.sampled_from(["time", "cost"]), st.floats(40, 300))
@settings(max_examples=10, deadline=None)
def test_a_higher_confidence_never_makes_the_choice_better(confidence, surer, objective, deadline):
    def best(confidence):
        constraints = {"deadline": deadline, "confidence": confidence}
        chosen = plan_of(job(cluster=CLUSTER, objective=objective, constraints=constraints)).choice
        return (
            float("inf") if chosen is None else chosen["time_to_train_s" if objective == "time" else "node_hours"].value
        )

    assert best(confidence) <= best(min(confidence + surer, 0.99))


@pytest.mark.parametrize(
    ("cluster", "limits", "text"),
    [
        ({"processes_per_node": 2}, {}, "Raise probe.seconds, now 60, and plan again with --reprofile"),
        ({"processes_per_node": 8}, {}, "8 processes do not fit the 2 cores here: profile where they do"),
        ({"processes_per_node": 2}, {"max_local_batch": 32}, "A profile times no accumulated steps"),
    ],
)
def test_a_choice_that_was_not_measured_says_how_to_have_it_measured(cluster, limits, text):
    predictor = FakePredictor(latency_s=2e-3, critical_batch=1e9, accuracy_loss=0.0)
    asked = job(cluster=cluster, objective="time", constraints=limits)
    plan = plan_of(asked, predictor, profile(memory_bytes=256 * GIB))
    assert not plan.choice.measured
    assert f"Beware: its step time was not measured but extrapolated. {text}" in plan.reason


def test_measured_configurations_are_in_the_table_also_where_a_limit_rules_them_out():
    asked = job(constraints={"max_local_batch": 32})
    plan = plan_of(asked, measured=profile(steps=(timing(1, 1, 48),)))
    row = next(r for r in plan.table if r.candidate.local_batch == 48)
    assert not row.feasible and "max_local_batch" in row.infeasible_because


def test_a_wide_cluster_is_planned_within_the_time_limit():
    asked = job({"batch_size": 100}, cluster={"nodes": 500, "processes_per_node": 8})
    plan = plan_of(asked, measured=profile(memory_bytes=64 * GIB))
    assert plan.choice is not None and len(plan.table) == plan.facts["evaluated"] <= plan.facts["grid"]


@pytest.mark.parametrize("nodes", [1, 8])
def test_the_rows_worth_printing(nodes):
    plan = plan_of(job(cluster={"nodes": nodes, "processes_per_node": 4}))
    rows = display_rows(plan)
    assert rows == sorted(set(rows)) and len(rows) <= 15
    reference = next(i for i, r in enumerate(plan.table) if r.candidate.processes == r.candidate.accumulation == 1
                     and r.candidate.global_batch == 64)  # fmt: skip
    assert {plan.choice_index, plan.knee, reference} <= set(rows)
    assert {plan.choice_index - 1, plan.choice_index + 1} & set(rows)


def test_the_neighbours_worth_printing_are_in_the_same_precision():
    plan = plan_of(job(cluster={"processes_per_node": 4}, precisions=["fp32", "bf16", "fp16"]))
    rows, choice = display_rows(plan), plan.choice
    alike = [
        i for i in rows
        if (c := plan.table[i].candidate).processes_per_node == choice.candidate.processes_per_node
        and c.precision == choice.candidate.precision
    ]  # fmt: skip
    assert len(alike) >= 2


def test_the_rows_worth_printing_of_an_infeasible_plan_hold_the_least_violating():
    plan = plan_of(job(cluster=CLUSTER, constraints={"deadline": "10s"}))
    assert plan.facts["nearest"] in display_rows(plan)


@pytest.mark.parametrize(("name", "loads"), [("make_plan", ["optuna"]), ("display_rows", [])])
def test_planning_loads_no_more_than_it_needs(name, loads):
    script = (
        f"import sys; from tula_core import search; search.{name}\n"
        "print([m for m in ('torch', 'mlflow', 'prefect', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, cwd=Path.cwd())
    assert done.stdout.strip() == str(loads)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plan'"):
        tula_core.search.plan  # noqa: B018
