import dataclasses

import pytest
from factories import make_job, make_profile
from search_fakes import FakePredictor, job, profile

from tula_core.job import Recipe
from tula_core.mitigations import MITIGATIONS, kept_copies
from tula_core.models.predictor import fit
from tula_core.progress import Event
from tula_core.records import Candidate, Pilot, PilotPoint, Stage
from tula_core.search.api import make_plan
from tula_core.search.methods import forecast_growing, method_notes

ONE_STAGE = (Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=64, accumulation=1),)


def test_a_plan_says_which_methods_act_in_its_forecast() -> None:
    plain = " ".join(method_notes(("linear-lr", "warmup"), {}))
    assert "pilots trained with the rates of linear-lr and warmup" in plain and "beware" not in plain
    costly = " ".join(method_notes(("linear-lr", "sam", "ema"), {}))
    assert "pilots trained without sam and ema" in costly and "2.06 times" in costly
    assert "nothing here says how much it helps" in costly
    known = " ".join(method_notes(("schedule-free", "sqrt-lr"), {}))
    assert "what other trainings say of schedule-free is used with mitigation auto alone" in known
    assert "stages of growth are part" in " ".join(method_notes(("growth",), {}))
    assert "2 times" in " ".join(method_notes(("batch-augmentation",), {}))
    assert "6 times" in " ".join(method_notes(("batch-augmentation",), {"batch-augmentation": {"copies": 6}}))
    assert method_notes(("batch-augmentation",), {"batch-augmentation": {"copies": 1}})[1:] == []
    assert method_notes((), {}) == []


def test_a_batch_that_follows_the_noise_may_never_grow() -> None:
    candidate = Candidate(nodes=1, processes_per_node=2, local_batch=512, mitigation=("adaptive-batch",))
    start = Candidate(nodes=1, processes_per_node=2, local_batch=32, mitigation=("adaptive-batch",))
    predictor = FakePredictor()
    (row,) = forecast_growing(predictor, [candidate], 64)
    (planned, begun) = predictor.forecast([candidate, start])
    assert row.candidate == candidate and not row.measured
    assert row["steps"].value == planned["steps"].value < begun["steps"].value <= row["steps"].high
    assert row["memory_bytes"] == planned["memory_bytes"]


@pytest.mark.parametrize("stages", [None, ONE_STAGE])
def test_what_a_method_keeps_is_in_the_memory_that_is_forecast(stages: tuple[Stage, ...] | None) -> None:
    """Elsewhere an average of the weights, or a second optimizer slot, is left out, and a run that fits runs out."""
    names = (("sam",), ("warmup",), ("ema", "lamb"))
    asked = [Candidate(nodes=1, processes_per_node=1, local_batch=64, mitigation=each, stages=stages) for each in names]
    profile, kept = make_profile(), kept_copies(Recipe(optimizer="sgd", momentum=0.0))
    plain = [row["memory_bytes"] for row in fit(profile, make_job()).forecast(asked)]
    found = [row["memory_bytes"] for row in fit(profile, make_job(), kept_copies=kept).forecast(asked)]
    for before, after, copies in zip(plain, found, (kept["sam"], 0, kept["ema"] + kept["lamb"]), strict=True):
        added = copies * profile.facts.gradient_bytes
        assert after.value == pytest.approx(before.value + added) and (after == before) is (copies == 0)
        assert after.low - before.low <= added <= after.high - before.high


@pytest.mark.parametrize(
    ("optimizer", "momentum", "copies"),
    [
        ("sgd", 0.9, {"ema": 1, "lars": 0, "lamb": 2, "linear-lr": 0}),
        ("sgd", 0.0, {"swa": 1, "lars": 1, "lamb": 3, "adascale": 1}),
        ("adamw", 0.9, {"ema": 1, "lamb": 1}),
    ],
)
def test_an_optimizer_that_a_method_brings_stands_in_for_the_recipes(
    optimizer: str, momentum: float, copies: dict[str, int]
) -> None:
    found = kept_copies(Recipe(optimizer=optimizer, momentum=momentum))
    assert {name: found[name] for name in copies} == copies


@pytest.mark.parametrize("processes", [1, 2])
def test_a_costly_method_lengthens_the_step_and_widens_it(processes: int) -> None:
    candidate = Candidate(nodes=1, processes_per_node=processes, local_batch=64, mitigation=("sam",))
    plain, costly = (
        fit(make_profile(), make_job(), step_costs={"sam": cost}).forecast([candidate])[0] for cost in (1.0, 2.0)
    )
    one, two = plain["step_time_s"], costly["step_time_s"]
    assert 1.3 < two.value / one.value < 2.0 + 1e-9
    assert two.high / two.value > 1.4 * one.high / one.value
    assert plain.measured and not costly.measured


@pytest.mark.parametrize(
    ("optimizer", "mitigation", "said"),
    [
        ("sgd", "lamb", "With lamb the recipe's optimizer, sgd, is not used; what trains is LAMB, of Adam's family"),
        ("adamw", "lamb", "With lamb the recipe's optimizer, adamw, is not used; what trains is LAMB"),
        ("sgd", "lars", "With lars the recipe's optimizer, sgd, is not used; what trains is LARS"),
        ("sgd", "schedule-free", "what trains is schedule-free SGD, which holds the rate and does without the"),
        ("adam", "schedule-free", "what trains is schedule-free AdamW"),
    ],
)
def test_an_optimizer_that_a_method_brings_is_named_in_place_of_the_recipes(
    optimizer: str, mitigation: str, said: str
) -> None:
    asked = job({"optimizer": optimizer, "learning_rate": 0.02}, mitigation=[mitigation])
    plan = make_plan(profile(), asked, FakePredictor(), mitigation=(mitigation,))
    [note] = [text for text in plan.assumptions if text.startswith(f"With {mitigation} ")]
    assert said in note and "the recipe's rate of 0.02 times" in note
    assert ("stated for another family of optimizers" in note) is ((optimizer, mitigation) == ("sgd", "lamb"))


@pytest.mark.parametrize("rule", ["sqrt-lr", "linear-lr", "legw"])
def test_the_rate_of_such_an_optimizer_is_said_with_the_rule_that_acts_on_it(rule: str) -> None:
    asked = job({"learning_rate": 0.02}, mitigation=["lars", rule])
    plan = make_plan(profile(), asked, FakePredictor(), mitigation=("lars", rule))
    [note] = [text for text in plan.assumptions if text.startswith("With lars ")]
    assert "0.02 times 10, on top of what the rule of the rate makes of it at another batch size" in note
    alone = make_plan(profile(), asked, FakePredictor(), mitigation=("lars",))
    assert not any("on top of what" in text for text in alone.assumptions)


def test_every_method_that_brings_an_optimizer_says_what_trains() -> None:
    for name, card in MITIGATIONS.items():
        for optimizer in card.slots:
            asked = job({"optimizer": optimizer}, mitigation=[name])
            plan = make_plan(profile(), asked, FakePredictor(), mitigation=(name,))
            assert any(text.startswith(f"With {name} the recipe's optimizer") for text in plan.assumptions)
    plain = make_plan(profile(), job(), FakePredictor(), mitigation=("linear-lr", "adascale", "sam"))
    assert not any("is not used: what trains" in text for text in plain.assumptions)


def run_of(**changes: object) -> Pilot:
    point = PilotPoint(samples=64, schedule_fraction=1.0, annealing=0.0, train_loss=2.3, metric=0.1, eval_samples=100)
    values = {"global_batch": 32, "learning_rate": 0.5, "planned_samples": 64, "seconds": 1.0, "points": (point,)}
    return Pilot(**{**values, "diverged": False, **changes})


@pytest.mark.parametrize(
    ("pilots", "why", "remedy"),
    [
        ((), "no pilot was run", "Raise probe.seconds, now 20, so that there is time for pilots."),
        ((run_of(diverged=True),), "every pilot diverged, at learning rate 0.5", "Lower recipe.learning_rate, or set"),
        ((run_of(),), "no pilot learnt anything that accuracy shows above chance", "set recipe.learning_rate to auto"),
    ],
)
def test_a_plan_that_knows_nothing_of_accuracy_warns_with_the_remedy(
    pilots: tuple[Pilot, ...], why: str, remedy: str
) -> None:
    measured = dataclasses.replace(profile(), pilots=pilots)
    heard: list[Event] = []
    blind = FakePredictor(accuracy_known=False)
    plan = make_plan(measured, job(probe={"seconds": 20}), blind, mitigation=(), listener=heard.append)
    [warning] = [event.message for event in heard if event.level == "warning"]
    assert f" Beware: {warning}" in plan.reason and why in warning and remedy in warning
    assert "time and cost are those of all 5 epochs" in warning
    assert "Beware" not in make_plan(measured, job(), FakePredictor(), mitigation=()).reason
