"""A plan says how the forecasts of what it compared answer to the cards of methods that no pilot trained with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_job, make_profile

import tula_core
from tula_core import profiling
from tula_core.mitigations import MITIGATIONS
from tula_core.records import save
from tula_core.records.corrections import BUILTIN, MethodCorrection
from tula_core.tracking.registry import champion_path


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(profiling, "complete", lambda job, profile: job)


def planned(**fields: object) -> tula_core.Plan:
    asked = make_job(target=None, **{"mitigation": "auto", "constraints": {"min_accuracy": 0.3}, **fields})
    return tula_core.plan(asked, profile=make_profile())


def test_rows_beside_the_choice_answer_to_their_cards_and_no_others_are_asked() -> None:
    plan = planned(objective="time")
    found = plan.facts["method_response"]
    assert plan.choice is not None and plan.choice.candidate.global_batch > plan.facts["reference_batch"]
    named = {name for number in found for name in plan.table[int(number)].candidate.mitigation}
    assert {"growth", "lars", "sqrt-lr"} <= named and "linear-lr" not in named
    assert {plan.table[int(number)].candidate.global_batch for number in found} == {plan.choice.candidate.global_batch}
    assert all(response > 0.0 for response in found.values())


def test_a_job_that_names_its_methods_answers_to_no_card() -> None:
    assert planned(mitigation=["growth"]).facts["method_response"] == {}


def test_a_champion_that_learnt_methods_forecasts_by_what_it_learnt() -> None:
    before = planned(objective="time")
    card = MITIGATIONS["growth"].effect
    assert card is not None
    learnt = MethodCorrection(shift=1.5, spread=0.5, outcomes=12, jobs=6, card=card)
    save(replace(BUILTIN, version=2, outcomes=12, jobs=6, by_method={"growth": learnt}), champion_path())
    after = planned(objective="time")
    pairs = [
        (old["accuracy"].value, new["accuracy"].value, old.candidate.mitigation)
        for old, new in zip(before.table, after.table, strict=True)
        if old.candidate == new.candidate and old.candidate.global_batch > before.facts["reference_batch"]
    ]
    assert {"growth" in names for *_, names in pairs} == {True, False}
    assert all((old > new) == ("growth" in names) for old, new, names in pairs)
    assert any("refined by 12 runs of 6 workloads here" in note for note in after.assumptions)
    assert not any("refined by" in note for note in before.assumptions)
