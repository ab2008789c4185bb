from __future__ import annotations

import dataclasses
import json

import pytest
import search_fakes as fakes

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.records import Plan, from_json, to_json
from tula_core.records.what_if import FACTS_ALONE
from tula_core.search import Elsewhere, answer_what_if, make_plan

NODE = {"name": "other", "device_memory": "16GiB", "device_tflops": 40, "device_memory_gbps": 900}


def asked(**parts: object) -> dict[str, object]:
    cluster = {"device_tflops": 10.0, "device_memory_gbps": 500.0}
    return {"workload": "digits-cnn", "cluster": cluster, "what_if": [NODE], **parts}


def place(name: str, slope_s: float) -> Elsewhere:
    return Elsewhere(
        name=name,
        predictor=fakes.FakePredictor(slope_s=slope_s, assumptions=(f"{name} was not measured.",)),
        profile=fakes.profile(device="cuda", device_memory_bytes=2**34),
        job=fakes.job(),
    )


def plan_with_answers() -> Plan:
    made = make_plan(fakes.profile(), fakes.job(), fakes.FakePredictor(), mitigation=())
    answers = answer_what_if([place("slow", 1e-3), place("fast", 1e-4)], ())
    return dataclasses.replace(made, what_if=answers)


def test_each_node_type_gets_a_choice_of_its_own_beside_the_table() -> None:
    plan = plan_with_answers()
    slow, fast = plan.what_if
    assert (slow.name, fast.name) == ("slow", "fast")
    assert slow.choice is not None
    assert fast.choice is not None
    assert fast.choice["time_to_train_s"].value < slow.choice["time_to_train_s"].value
    assert fast.assumptions == ("fast was not measured.",)
    assert all(answer.choice not in plan.table for answer in plan.what_if)


def test_a_node_type_where_nothing_fits_says_why() -> None:
    small = dataclasses.replace(place("small", 1e-3), profile=fakes.profile(device="cuda", device_memory_bytes=2**20))
    (answer,) = answer_what_if([small], ())
    assert answer.choice is None
    assert answer.reason


def test_answers_survive_the_plans_file_and_older_files_have_none() -> None:
    plan = plan_with_answers()
    assert from_json(Plan, to_json(plan), source="plan.json") == plan
    data = json.loads(to_json(plan))
    assert [answer["name"] for answer in data["what_if"]] == ["slow", "fast"]
    del data["what_if"]
    assert from_json(Plan, json.dumps(data), source="plan.json").what_if == ()


def test_a_damaged_answer_is_refused() -> None:
    data = json.loads(to_json(plan_with_answers()))
    data["what_if"][0]["choice"]["local_batch"] = "many"
    with pytest.raises(InputError):
        from_json(Plan, json.dumps(data), source="plan.json")


def test_a_job_with_node_types_survives_its_own_values() -> None:
    job = Job.from_mapping(asked())
    assert job.what_if[0].device_memory == 16 * 2**30
    assert Job.from_mapping(job.to_dict()) == job


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"cluster": {"device_tflops": 10.0}}, r"cluster\.device_memory_gbps: missing"),
        ({"cluster": {}}, r"cluster\.device_tflops: missing"),
        ({"what_if": [NODE, NODE]}, "'other' is given 2 times"),
        ({"what_if": [{**NODE, "device_tflops": 0}]}, "device_tflops"),
        ({"what_if": [{**NODE, "device_memory_gbps": float("inf")}]}, "device_memory_gbps"),
        ({"what_if": [{**NODE, "device_memory_gbps": float("nan")}]}, "device_memory_gbps"),
        ({"what_if": [{**NODE, "device_tflops": {"fp32": True}}]}, "device_tflops"),
        ({"what_if": [{**NODE, "device_tflop": 1}]}, "device_tflop"),
        ({"objective": "energy"}, "no power_watts"),
        (
            {
                "cluster": {"device_tflops": 10.0, "device_memory_gbps": 500.0, "price_per_node_hour": 1.0},
                "constraints": {"budget_usd": 5},
            },
            "no price_per_node_hour",
        ),
    ],
)
def test_a_job_that_cannot_be_compared_is_refused(parts: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Job.from_mapping(asked(**parts))


def test_no_advice_to_measure_here_is_given_for_a_machine_known_by_its_facts() -> None:
    there = place("other", 1e-3)
    hardware = dataclasses.replace(there.profile.hardware, fingerprint=f"{FACTS_ALONE}other")
    there = dataclasses.replace(
        there,
        profile=dataclasses.replace(there.profile, hardware=hardware),
        job=fakes.job(cluster={"processes_per_node": 2}, objective="time"),
    )
    (answer,) = answer_what_if([there], ())
    assert "probe.seconds" not in answer.reason and "Nothing was measured there" in answer.reason


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("name", r"what_if\.0\.name: missing\. Give a name for the node type, a100-node for example\."),
        ("device_memory", r"what_if\.0\.device_memory: missing\. Give the memory of one device, 80GiB for example\."),
        ("device_tflops", r"what_if\.0\.device_tflops: missing\. Give the peak TFLOP/s of one device .*312 or \{fp32"),
        ("device_memory_gbps", r"what_if\.0\.device_memory_gbps: missing\. Give the memory bandwidth of one device in"),
    ],
)
def test_a_fact_that_is_missing_is_named_with_what_is_allowed(lacking: str, message: str) -> None:
    node = {name: value for name, value in NODE.items() if name != lacking}
    with pytest.raises(InputError, match=message) as caught:
        Job.from_mapping(asked(what_if=[node]))
    assert "leave it out" not in str(caught.value)


def test_a_node_type_that_is_no_mapping_and_a_fact_that_is_wrong_say_what_to_write() -> None:
    with pytest.raises(InputError, match=r"what_if\.0: found 'H100', keys and values are needed\. Write some of name"):
        Job.from_mapping(asked(what_if=["H100"]))
    with pytest.raises(InputError, match=r"what_if\.0\.device_memory_gbps: .* got -1\. Mend this field\.$"):
        Job.from_mapping(asked(what_if=[{**NODE, "device_memory_gbps": -1}]))
