"""`mitigation: auto`: packages of methods as candidates of their own, the choice among them, and its reason."""

from __future__ import annotations

import dataclasses
import warnings

import optuna
import pytest
from factories import make_job, make_profile
from search_fakes import FakePredictor, job, profile

from tula_core.errors import InputError
from tula_core.mitigations import MITIGATIONS, Packages, check_together, effects_of, packages_of
from tula_core.models.predictor import fit
from tula_core.records import from_json
from tula_core.search.api import make_plan
from tula_core.search.places import Places
from tula_core.search.space import candidates, key
from tula_core.search.table import display_rows

SGD = Packages.auto("sgd")


class ByMethod(FakePredictor):
    """Growth keeps the accuracy and takes longer, a fixed large batch loses it unless it is small."""

    unlucky: tuple[str, ...] = ()

    def quantities(self, c):
        found = super().quantities(c)
        if "growth" in c.mitigation:
            return found | {"accuracy": 0.95, "time_to_train_s": 1.2 * found["time_to_train_s"]}
        return found

    def keeping_probability(self, candidate, reference, slack, /):
        return 0.6 if set(self.unlucky) & set(candidate.mitigation) else 0.95


def plan_of(predictor=None, **fields):
    asked = job(**{"cluster": {"processes_per_node": 2}, **fields})
    return make_plan(profile(6400), asked, predictor or ByMethod(samples=6400), mitigation=packages_of(asked))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_package_goes_together_and_fits_its_optimizer(optimizer):
    found = Packages.auto(optimizer)
    for names in found.every:
        check_together(names, optimizer)
    assert found.pilots == found.large[0] and len(set(found.large)) == len(found.large)
    assert not set(effects_of(found)) & set(found.pilots)
    assert {name for name in found.names if name not in found.pilots} == set(effects_of(found))


def test_a_job_that_names_its_methods_has_one_package_and_no_effects():
    asked = packages_of(job(mitigation=["sqrt-lr", "ema"]))
    assert asked.every == (("sqrt-lr", "ema"),) and not asked.several and effects_of(asked) == {}


def test_options_of_every_package_may_be_given_and_no_others():
    packages_of(job(mitigation_options={"growth": {"until": 0.5}}))
    with pytest.raises(InputError, match="mitigation_options.sam: the job does not use this method"):
        packages_of(job(mitigation_options={"sam": {"rho": 0.1}}))


@pytest.mark.parametrize(("processes", "left_out"), [(2, False), (8, True)])
def test_packages_that_many_candidates_leave_out_are_named(processes, left_out):
    plan = plan_of(cluster={"processes_per_node": processes})
    offered = {row.candidate.mitigation for row in plan.table}
    said = [note for note in plan.assumptions if "auto did not look at" in note]
    assert (("lars",) in offered) is not left_out and bool(said) is left_out
    assert all("sqrt-lr+warmup and lars" in note for note in said)


def test_up_to_the_reference_batch_there_is_one_package_and_above_it_each_once():
    asked = job({"batch_size": 64}, cluster={"processes_per_node": 2})
    found = candidates(profile(6400), asked, FakePredictor(), SGD)
    assert {c.mitigation for c in found if c.global_batch <= 64} == {("linear-lr",)}
    by_shape = {}
    for c in found:
        if c.global_batch > 64:
            by_shape.setdefault((c.processes, c.global_batch), set()).add(c.mitigation)
    assert all(methods == set(SGD.large) for methods in by_shape.values())
    assert all((c.stages is not None) == ("growth" in c.mitigation) for c in found)
    assert [key(c) for c in found] == sorted({key(c) for c in found})


def test_a_schedule_that_never_falls_offers_no_seesaw():
    flat = job({"optimizer": "adam", "schedule": "constant"})
    found = candidates(profile(6400), flat, FakePredictor(), Packages.auto("adam"))
    assert {c.mitigation[0] for c in found} == {"sqrt-lr", "growth", "lamb"}


def test_a_wide_cluster_looks_at_the_three_packages_that_are_worth_most():
    asked = job(cluster={"nodes": 8, "processes_per_node": 8})
    found = candidates(profile(60_000), asked, FakePredictor(), SGD)
    assert {c.mitigation for c in found if c.global_batch > 64} == set(SGD.large[:3])


def test_the_method_that_keeps_the_accuracy_is_chosen_and_the_reason_says_so():
    plan = plan_of(ByMethod(samples=6400, accuracy_loss=2e-4, slope_s=1e-5), objective="time")
    assert plan.choice.candidate.mitigation == ("growth",) and plan.choice.candidate.global_batch > 64
    assert "It trains with growth, the only one of 5 packages of methods" in plan.reason
    assert "what growth does beside that is known from other trainings" in plan.reason
    compared = plan.facts["methods"]
    assert [row["chosen"] for row in compared] == [True, *[False] * 4]
    assert {tuple(row["mitigation"]) for row in compared} == set(SGD.large)
    assert all("reference batch" in row["infeasible_because"] for row in compared[1:])
    assert from_json(type(plan), plan.to_json(), source="plan") == plan


def test_a_method_does_not_win_by_luck():
    def choice(**fields):
        predictor = ByMethod(samples=6400, accuracy_loss=2e-4, slope_s=1e-5)
        predictor.unlucky = ("growth",)
        return plan_of(predictor, objective="time", **fields).choice.candidate

    assert choice().mitigation == ("linear-lr",)
    assert choice(constraints={"confidence": 0.5}).mitigation == ("growth",)


def test_a_batch_that_needs_nothing_is_said_to_need_nothing():
    plan = plan_of(ByMethod(samples=6400, accuracy_loss=2e-4, slope_s=0.1), objective="cost")
    assert plan.choice.candidate.global_batch <= 64
    assert "No method is needed against lost accuracy" in plan.reason and len(plan.facts["methods"]) == 1


def test_where_nothing_is_known_of_accuracy_growth_alone_is_offered_and_said():
    plan = plan_of(FakePredictor(samples=6400, accuracy_known=False))
    large = {row.candidate.mitigation for row in plan.table if row.candidate.global_batch > 64}
    assert large == {("growth",)} and any("growth alone is offered" in text for text in plan.assumptions)


def test_the_rows_worth_printing_are_found_with_methods_too():
    plan = plan_of()
    assert plan.choice_index in display_rows(plan) and len(display_rows(plan)) <= 15


@pytest.mark.parametrize("method", ["growth", "linear-lr"])
def test_a_target_has_to_be_met_with_the_confidence_by_every_method_alike(method):
    """A method of the pilots is not let through with an even chance while another has to be sure."""

    class Chancy(ByMethod):
        def reach_probability(self, candidate, /):
            return 0.6 if candidate.global_batch > 64 and method in candidate.mitigation else 0.9

    def by_it(**constraints):
        plan = plan_of(Chancy(samples=6400), target={"value": 0.5}, constraints=constraints)
        large = [row for row in plan.table if row.candidate.global_batch > 64]
        return [row for row in large if method in row.candidate.mitigation]

    refused = by_it()
    assert refused and not any(row.feasible for row in refused)
    assert "reached within 5 epochs with a chance of 60 % only, constraints.confidence asks for 80 %" in (
        refused[0].infeasible_because
    )
    assert all(row.feasible for row in by_it(confidence=0.6))


def test_methods_act_in_the_forecast_as_their_cards_say():
    costs = {name: card.step_cost for name, card in MITIGATIONS.items()}
    asked, measured = make_job(target=None), make_profile()
    predictor = fit(measured, asked, effects=effects_of(SGD), step_costs=costs)
    plan = make_plan(measured, asked, predictor, mitigation=SGD)
    batch = max(row.candidate.global_batch for row in plan.table if row.candidate.global_batch <= 1024)
    rows = {row.candidate.mitigation[0]: row for row in plan.table if row.candidate.global_batch == batch}
    accuracy = {name: row["accuracy"].value for name, row in rows.items()}
    assert accuracy["growth"] > accuracy["linear-lr"] > accuracy["sqrt-lr"]
    assert rows["linear-lr"]["steps"].value < rows["growth"]["steps"].value
    assert rows["lars"]["step_time_s"].value > rows["linear-lr"]["step_time_s"].value


def test_a_rate_that_does_not_rise_is_not_lost_where_the_pilots_diverged():
    asked, measured = make_job(target=None), make_profile()
    first, *others = measured.pilots
    lost = dataclasses.replace(others[-1], diverged=True)
    shaky = dataclasses.replace(measured, pilots=(first, *others[:-1], lost))
    rows = make_plan(shaky, asked, fit(shaky, asked, effects=effects_of(SGD)), mitigation=SGD).table
    low = {
        row.candidate.mitigation[0]: row["accuracy"].low
        for row in rows
        if row.candidate.global_batch == 16 * asked.recipe.batch_size
    }
    assert low["growth"] > low["linear-lr"] + 0.1


def test_methods_are_a_dimension_of_the_study():
    asked = job({"batch_size": 64}, cluster={"processes_per_node": 2})
    grid = candidates(profile(200), asked, FakePredictor(), SGD)
    places = Places(grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=1))
    found = []

    def objective(trial):
        members = places.suggest(trial)
        if members:
            found.append(members[trial.suggest_int("batch_option", 0, len(members) - 1)])
        return 0.0

    study.optimize(objective, n_trials=len(grid) + places.empty)
    assert sorted(found) == list(range(len(grid)))
    assert all(set(places.parameters(c)) == {"layout", "mitigation", "batch_option"} for c in grid)
    assert places.of_layout("1x2") == [i for i, c in enumerate(grid) if c.processes_per_node == 2]
