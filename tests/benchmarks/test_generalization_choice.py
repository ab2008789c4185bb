"""What ``auto`` chooses in the generalization benchmark, from given profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.generalization_choice import Choice, Choices, Weighed, asked_job, batches, choose, weigh
from tests.benchmarks.generalization_jobs import FULL, QUICK
from tests.benchmarks.generalization_methods import ROWS
from tests.benchmarks.generalization_store import Store
from tests.benchmarks.generalization_study import Study
from tests.factories import make_job, make_profile
from tula_core import profiling
from tula_core.job import Job
from tula_core.mitigations import Packages
from tula_core.records import Candidate, Interval, Profile, Row

DIGITS = QUICK.jobs["digits"]


def weighed(name: str, time_s: float, chance: float | None) -> Weighed:
    row = Row(
        candidate=Candidate(nodes=1, processes_per_node=1, local_batch=512, mitigation=(name,)),
        feasible=True,
        infeasible_because=None,
        measured=True,
        forecast={"time_to_train_s": Interval(value=time_s, low=time_s, high=time_s)},
    )
    return Weighed(row=row, chance=chance)


def test_the_fastest_of_those_that_are_sure_enough_is_chosen_else_the_surest() -> None:
    packages = [weighed("linear-lr", 1.0, 0.3), weighed("growth", 3.0, 0.9), weighed("seesaw", 4.0, 0.95)]
    assert choose(packages, 0.8, "sgd").choice.methods == ("growth",)
    assert choose(packages, 0.99, "sgd").choice.methods == ("seesaw",)
    assert choose(packages, 0.2, "sgd").choice == Choice(batch=512, methods=("linear-lr",))


def test_where_the_probe_says_nothing_of_accuracy_what_a_plan_offers_then_is_taken() -> None:
    blind = [weighed("linear-lr", 1.0, None), weighed("growth", 3.0, None)]
    assert choose(blind, 0.8, "sgd").choice.methods == ("growth",)
    assert str(blind[0]) == "batch 512 with linear-lr: accuracy unknown"


def test_every_package_is_weighed_at_the_large_batch_by_the_planners_own_forecast() -> None:
    found = weigh(make_job(target=None), make_profile(), [1024])
    assert tuple(item.choice.methods for item in found) == Packages.auto("sgd").large
    growth = next(item for item in found if item.choice.methods == ("growth",))
    assert growth.row.candidate.stages is not None and growth.row.candidate.global_batch == 1024
    chances = [item.chance or 0.0 for item in found]
    assert growth.chance == max(chances) and all(0.0 <= chance <= 1.0 for chance in chances)


def test_auto_may_take_any_batch_up_to_the_large_one_that_takes_few_enough_steps() -> None:
    job, profile = make_job(target=None), make_profile()
    small = job.recipe.batch_size
    found = weigh(job, profile, [2 * small, 4 * small, 32 * small])
    steps = job.recipe.epochs * -(-profile.facts.train_samples // small)
    taken = {item.choice for item in found}
    assert all((item.row["steps"].value or 0.0) <= 0.4 * steps for item in found)
    assert Choice(batch=4 * small, methods=("linear-lr", "warmup")) in taken
    assert Choice(batch=32 * small, methods=("growth",)) in taken
    assert Choice(batch=2 * small, methods=("linear-lr", "warmup")) not in taken  # half the steps
    assert Choice(batch=4 * small, methods=("growth",)) not in taken


def test_auto_may_take_the_batch_of_just_as_many_steps_as_are_allowed() -> None:
    assert batches(FULL.jobs["mlp-20k"], ROWS["auto"]) == [64, 80, 128, 256, 512, 1024, 2048]
    assert batches(FULL.jobs["mlp-20k"], ROWS["auto-large"]) == [2048]


def test_the_probe_looks_at_the_validation_split_with_the_small_batchs_rate() -> None:
    asked = asked_job(FULL, FULL.jobs["mlp-20k"], 0.025)
    assert asked.name == "full.mlp-20k.tune" and asked.mitigation == "auto" and asked.target == "none"
    assert (asked.recipe.learning_rate, asked.recipe.batch_size) == (0.025, 32)


def test_probe_and_choice_are_made_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probed = []

    def profile(job: Job, reprofile: bool) -> tuple[Job, Profile, bool]:
        probed.append(job.name)
        return job, make_profile(), False

    monkeypatch.setattr(profiling, "profile", profile)
    monkeypatch.setattr(profiling, "complete", lambda job, measured: make_job(recipe=job.recipe, target=None))
    choices = Choices(QUICK, tmp_path / "r.auto")
    store = Store(tmp_path / "r.jsonl")
    study = Study(QUICK, [DIGITS], [ROWS["small"], ROWS["auto"]], store, choose=choices.known, seeds=1)
    assert study.unchosen() == []  # the small batch's rate is not known yet
    for request in study.missing():
        result = {"accuracy": 0.9, "train_accuracy": None, "steps": 60, "samples": 9, "seconds": 1.0, "reductions": 0}
        store.add(request, result)
    ((bench, rate, row),) = study.unchosen()
    choices.make(bench, rate, row)
    assert study.unchosen() == [] and probed == ["quick.digits.tune"]
    assert any(request.row.name == "auto" for request in study.missing())
    assert Choices(QUICK, tmp_path / "r.auto").known(bench, rate, row) == choices.known(bench, rate, row)
    assert choices.line(bench, rate, row).startswith("digits, auto: batch ")
