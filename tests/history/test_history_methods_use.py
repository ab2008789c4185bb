"""What was learnt of a method on its way: into the registry and back, into files, and into a plan."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from factories import make_job, make_profile
from history_factories import make_correcting, make_method_history, make_method_outcome
from mlflow_server import Server

from tula_core.history import adopt, retrain, sync
from tula_core.history.methods import today
from tula_core.mitigations import Packages, effects_of, taught
from tula_core.models.predictor import fit
from tula_core.models.response import method_response
from tula_core.records import Candidate, Corrections, Outcome, from_json, to_json
from tula_core.records.corrections import BUILTIN, MethodCorrection
from tula_core.search.api import make_plan
from tula_core.tracking import champion, corrections_of, flush, spool, store, sync_champion
from tula_core.tracking.registry import champion_path
from tula_core.tracking.runs import finish_operation

CARD = today("growth")
assert CARD is not None
LEARNT = MethodCorrection(shift=0.4, spread=0.8, outcomes=9, jobs=3, card=CARD)
SGD = Packages.auto("sgd")


@pytest.mark.service
def test_what_was_learnt_goes_to_a_server_and_comes_back(
    mlflow_server: Server, state: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    for outcome in make_method_history(0.3, 0.28, 0.31, 0.33):
        spool.append(finish_operation(outcome))
    assert flush().problem is None
    report = adopt(retrain(sync(), champion()))
    assert report.promoted and report.challenger is not None and set(report.challenger.by_method) == {"growth"}
    champion_path().unlink()
    for path in (champion_path().parent / "predictors").iterdir():
        path.unlink()
    assert champion() == BUILTIN
    assert sync_champion() == report.challenger == corrections_of(report.challenger.label)
    version = store.client().get_model_version("tula-predictor", "2")
    assert "growth: +" in version.description
    run = store.client().get_run(version.run_id)
    assert run.data.metrics["challenger_method_error_pct/growth"] < run.data.metrics["champion_method_error_pct/growth"]


def test_files_of_before_load_unchanged() -> None:
    told = json.loads(to_json(replace(BUILTIN, version=2)))
    assert told.pop("by_method") == {}
    assert from_json(Corrections, json.dumps(told), source="old") == replace(BUILTIN, version=2)
    outcome = make_method_outcome("1")
    told = json.loads(to_json(outcome))
    assert from_json(Outcome, json.dumps(told), source="new") == outcome
    for name in ("reference_batch", "higher_is_better", "metric_best", "untried", "expected_end", "method_response"):
        del told[name]
    old = from_json(Outcome, json.dumps(told), source="old")
    assert (old.reference_batch, old.untried, old.expected_end) == (None, {}, None)


def test_a_forecast_answers_to_a_shift_as_the_plan_said() -> None:
    """Only so can a shift be checked on outcomes without forecasting anew."""
    asked, measured = make_job(target=None), make_profile()
    for batches, least in ((8, 0.02), (32, 0.05)):
        [row] = rows = [
            Candidate(
                nodes=1, processes_per_node=1, local_batch=batches * asked.recipe.batch_size, mitigation=("lars",)
            )
        ]
        card = today("lars")
        assert card is not None
        plain = fit(measured, asked, effects=effects_of(SGD))
        response = method_response(plain.models, row, {"lars": card})
        assert response is not None and response > least
        known = {"lars": replace(LEARNT, card=card, spread=1.0)}
        shifted = fit(measured, asked, effects=effects_of(taught(SGD, known))).forecast(rows)[0]["accuracy"].value
        before = plain.forecast(rows)[0]["accuracy"].value
        assert shifted is not None and before is not None
        assert math.log((1.0 - shifted) / (1.0 - before)) == pytest.approx(0.4 * response, rel=0.25)


def test_the_answer_is_that_of_a_forecast_without_corrections() -> None:
    """Runs are compared by it whatever the version that forecast them had learnt."""
    asked, measured = make_job(target=None), make_profile()
    card = today("growth")
    assert card is not None
    row = Candidate(nodes=1, processes_per_node=1, local_batch=8 * asked.recipe.batch_size, mitigation=("growth",))
    corrected = make_correcting("accuracy", 0.04)
    plain, other = (
        method_response(fit(measured, asked, version, effects=effects_of(SGD)).models, row, {"growth": card})
        for version in (BUILTIN, corrected)
    )
    assert plain is not None and plain == other


def test_agreeing_runs_narrow_the_forecast_and_contradictory_ones_widen_it() -> None:
    asked, measured = make_job(target=None), make_profile()
    row = [Candidate(nodes=1, processes_per_node=1, local_batch=32 * asked.recipe.batch_size, mitigation=("growth",))]

    def width(spread: float) -> float:
        known = {"growth": replace(LEARNT, shift=0.0, spread=spread)}
        found = fit(measured, asked, effects=effects_of(taught(SGD, known))).forecast(row)[0]["accuracy"]
        assert found.low is not None and found.high is not None
        return found.high - found.low

    assert width(0.3) < width(1.0) < width(2.5)


def test_a_plan_says_that_runs_here_refined_what_is_known() -> None:
    asked, measured = make_job(target=None, objective="time", constraints={"min_accuracy": 0.3}), make_profile()
    card = today("lars")
    assert card is not None
    packages = replace(taught(SGD, {"lars": replace(LEARNT, card=card)}), large=(("growth",), ("lars",)))
    plan = make_plan(measured, asked, fit(measured, asked, effects=effects_of(packages)), mitigation=packages)
    words = replace(LEARNT, card=card).words()
    assert any(note.endswith(f"refined by 9 runs of 3 workloads here: {words}") for note in plan.assumptions)
    assert any("no pilot trained with growth" in note and "as wide as they differ" in note for note in plan.assumptions)
    assert plan.choice is not None and plan.choice.candidate.mitigation == ("lars",)
    assert f"refined by 9 runs of 3 workloads here: {words}" in plan.reason
    assert plan.facts["metric_best"] == 1.0
