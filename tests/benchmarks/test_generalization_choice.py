"""What ``auto`` chooses in the generalization benchmark, from given profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.generalization_choice import Choices, Weighed, asked_job, choose, weigh
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


def weighed(name: str, time_s: float, chance: float) -> Weighed:
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
    assert choose(packages, 0.8).names == ("growth",)
    assert choose(packages, 0.99).names == ("seesaw",)
    assert choose(packages, 0.2).names == ("linear-lr",)


def test_every_package_is_weighed_at_the_large_batch_by_the_planners_own_forecast() -> None:
    found = weigh(make_job(target=None), make_profile(), 1024)
    assert tuple(item.names for item in found) == Packages.auto("sgd").large
    growth = next(item for item in found if item.names == ("growth",))
    assert growth.row.candidate.stages is not None and growth.row.candidate.global_batch == 1024
    assert all(0.0 <= item.chance <= 1.0 for item in found)
    assert growth.chance == max(item.chance for item in found)


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
    ((bench, rate),) = study.unchosen()
    choices.make(bench, rate)
    assert study.unchosen() == [] and probed == ["quick.digits.tune"]
    assert any(request.row.name == "auto" for request in study.missing())
    assert Choices(QUICK, tmp_path / "r.auto").known(bench, rate) == choices.known(bench, rate)
    assert choices.line(bench, rate).startswith("digits: ")
