import json
import math
import os
from pathlib import Path

import pytest
from train_helpers import hand_made_plan

from tula_core.errors import InputError, RunError
from tula_core.home import check_room, tula_home, write_atomic
from tula_core.records import QUANTITIES, Candidate, Corrections, Interval, Pilot, PilotPoint, Plan, Profile, load, save
from tula_core.records.corrections import BUILTIN
from tula_core.registry import Registry
from tula_core.seeding import derive_seed


def test_a_plan_round_trips_and_keeps_the_fixed_keys(tmp_path: Path) -> None:
    plan = hand_made_plan("plain")
    save(plan, tmp_path / "plan.json")
    assert load(Plan, tmp_path / "plan.json") == plan
    data = json.loads(plan.to_json())
    fixed = "schema_version job hardware predictor probe table pareto knee choice reason assumptions"
    assert set(fixed.split()) <= set(data)
    assert data["choice"]["global_batch"] == 16
    for name in QUANTITIES:
        assert {name, f"{name}_low", f"{name}_high"} <= set(data["choice"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema_version": 99}, "schema_version is 99"),
        ({"schema_version": None}, "schema_version is None"),
        ({"table": None}, "table: input should be a valid list"),
        ({"job": {"workload": "x", "colour": 1}}, "colour: unknown key"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    data = json.loads(hand_made_plan("plain").to_json()) | change
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=expected):
        load(Plan, tmp_path / "plan.json")


def _wrong_plans() -> dict[str, tuple[dict[str, object], dict[str, object], str]]:
    """Return by name: changes to the plan, changes to every row and the choice, and what the message must say."""
    return {
        "nan": ({}, {"time_to_train_s": float("nan")}, "non-finite interval"),
        "outside": ({}, {"time_to_train_s": 1e9}, "value outside its interval"),
        "half": ({}, {"time_to_train_s": None}, "partly unknown interval"),
        "text for a number": ({}, {"time_to_train_s": "5"}, "not a plan"),
        "no nodes": ({}, {"nodes": 0, "global_batch": 0}, "table.0.nodes: input should be greater than 0"),
        "half a node": ({}, {"nodes": 1.0}, "table.0.nodes: input should be a valid integer"),
        "negative batch": ({}, {"local_batch": -16, "global_batch": -16}, "table.0.local_batch"),
        "word for a switch": ({}, {"feasible": "no"}, "table.0.feasible: input should be a valid boolean"),
        "one mitigation": ({}, {"mitigation": "warmup"}, "table.0.mitigation"),
        "half a stage": ({}, {"stages": [{"a": 1}]}, "table.0.stages.0"),
        "front outside": ({"pareto": [99]}, {}, "pareto names row 99, the table has"),
        "knee outside": ({"knee": -1}, {}, "knee names row -1"),
        "front of words": ({"pareto": "abc"}, {}, "pareto: input should be a valid list"),
        "hardware list": ({"hardware": []}, {}, "hardware"),
        "hardware unnamed": ({"hardware": {}}, {}, "hardware.fingerprint: field required"),
        "no facts": ({"facts": None}, {}, "facts"),
        "no reason": ({"reason": None}, {}, "reason: input should be a valid string"),
        "no predictor": ({"predictor": 3}, {}, "predictor"),
        "no probe": ({"probe": {}}, {}, "not a plan"),
    }


@pytest.mark.parametrize("name", _wrong_plans())
def test_a_plan_edited_by_hand_is_refused_and_the_value_named(tmp_path: Path, name: str) -> None:
    changes, of_rows, expected = _wrong_plans()[name]
    data = json.loads(hand_made_plan("plain").to_json()) | changes
    for row in (*data["table"], data["choice"]):
        row |= of_rows
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        load(Plan, tmp_path / "plan.json")
    assert expected in str(caught.value)
    assert "plan.json" in str(caught.value)


def test_a_choice_without_a_number_must_be_a_row(tmp_path: Path) -> None:
    data = json.loads(hand_made_plan("plain").to_json())
    del data["choice"]["row"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert load(Plan, tmp_path / "plan.json") == hand_made_plan("plain")
    data["choice"]["local_batch"] = data["choice"]["global_batch"] = 99
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="choice is not the row"):
        load(Plan, tmp_path / "plan.json")


def test_a_choice_that_is_no_row_of_the_table_is_refused(tmp_path: Path) -> None:
    data = json.loads(hand_made_plan("plain").to_json())
    data["choice"]["local_batch"] = data["choice"]["global_batch"] = 99
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="choice is not the row"):
        load(Plan, tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000])
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(InputError, match="profile"):
        load(Profile, tmp_path / "profile.json")


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    save(BUILTIN, tmp_path / "c.json")
    data = json.loads((tmp_path / "c.json").read_text()) | {"by_quantity": {"steps": {"log_bias": 1}}}
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="by_quantity.steps"):
        load(Corrections, tmp_path / "c.json")


def test_the_batch_identity_holds() -> None:
    candidate = Candidate(nodes=2, processes_per_node=3, local_batch=5, accumulation=7)
    assert candidate.global_batch == 2 * 3 * 5 * 7


def test_intervals_hold_their_value_and_nothing_infinite() -> None:
    with pytest.raises(AssertionError):
        Interval(value=1.0, low=2.0, high=3.0)
    with pytest.raises(AssertionError):
        Interval(value=1.0, low=0.0, high=float("inf"))


def test_a_reading_that_is_not_a_number_is_one_again_when_it_is_read(tmp_path: Path) -> None:
    last = PilotPoint(
        samples=64, schedule_fraction=0.1, annealing=0.0, train_loss=math.nan, metric=math.inf, eval_samples=9
    )
    pilot = Pilot(global_batch=64, learning_rate=9.0, planned_samples=640, seconds=1.0, points=(last,), diverged=True)
    save(pilot, tmp_path / "pilot.json")
    assert '"metric": null' in (tmp_path / "pilot.json").read_text()
    (point,) = load(Pilot, tmp_path / "pilot.json").points
    assert math.isnan(point.train_loss) and math.isnan(point.metric)
    (tmp_path / "pilot.json").write_text((tmp_path / "pilot.json").read_text().replace("9.0", "null"))
    with pytest.raises(InputError, match="learning_rate"):
        load(Pilot, tmp_path / "pilot.json")


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.json"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "tula-home"] == ["kept.json"]


def test_a_full_disk_is_found_out_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    check_room()
    assert list((tmp_path / "home").iterdir()) == []

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="TULA_HOME: .* cannot be written .No space left on device.. Free disk space"):
        check_room()


def test_a_home_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="TULA_HOME"):
        tula_home()


def test_a_registry_refuses_duplicates_and_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        Registry("thing", ("a", 1), ("a", 2))
    with pytest.raises(InputError, match="Did you mean 'warmup'"):
        Registry("thing", ("warmup", 1))["warm-up"]


def test_seeds_depend_on_every_part_of_the_path() -> None:
    seeds = {derive_seed(seed, name, number) for seed in (0, 1) for name in ("a", "b") for number in (0, 1)}
    assert len(seeds) == 8
