from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from search_fakes import FakePredictor, job, profile

from tula_core.search.constraints import LIMIT_KEYS, Limits, judge
from tula_core.search.pareto import pareto_front
from tula_core.search.space import candidates, key
from tula_core.search.study import Task, search, write_journal

ASKED = job(cluster={"nodes": 4, "processes_per_node": 2}, constraints={"deadline": "3m"})


def task(predictor=None, **changes):
    predictor = predictor or FakePredictor()
    limits = Limits(
        job=ASKED,
        hardware=profile().hardware,
        train_samples=60_000,
        expense="node_hours",
        higher_is_better=True,
        worst_accuracy=None,
        reach_probability=predictor.reach_probability,
    )
    grid = candidates(profile(), ASKED, predictor, ())

    def evaluate(chosen):
        return [judge(row, limits) for row in predictor.forecast(chosen)]

    made = Task(name="test", grid=grid, first=grid[2:4], evaluate=evaluate, expense="node_hours", seed=1)
    return dataclasses.replace(made, **changes)


def tried(study):
    return [
        (t.params["layout"], t.user_attrs["global_batch"], t.user_attrs["accumulation"], t.user_attrs["local_batch"])
        for t in study.trials
    ]


def test_a_small_grid_is_tried_completely_and_each_point_once():
    predictor = FakePredictor()
    asked = task(predictor)
    searched = search(asked)
    names = tried(searched.study)
    assert len(names) == len(set(names)) == len(asked.grid) == len(searched.judged)
    assert [key(item.row.candidate) for item in searched.judged] == [key(c) for c in asked.grid]
    assert predictor.calls == [len(asked.grid)]


def test_the_studys_best_trials_are_the_front_of_the_feasible_rows():
    searched = search(task())
    rows = [item.row for item in searched.judged if item.row.feasible]
    times, hours = (np.array([r[name].value for r in rows]) for name in ("time_to_train_s", "node_hours"))
    ours = {(times[i], hours[i]) for i in pareto_front(times, hours)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        assert {tuple(trial.values) for trial in searched.study.best_trials} == ours
    assert 0 < len(rows) < len(searched.judged)


def test_infeasible_trials_carry_their_limit_and_reason_and_no_trial_is_infinite():
    searched = search(task(FakePredictor(unknown_layouts=frozenset({(2, 1)}))))
    failed = [t for t in searched.study.trials if t.state == TrialState.FAIL]
    assert {t.params["layout"] for t in failed} == {"2x1"}
    for trial in searched.study.trials:
        assert set(trial.constraints) == set(LIMIT_KEYS)
        assert trial.values is None or all(map(math.isfinite, trial.values))
        assert (trial.user_attrs.get("infeasible_because") is None) == (max(trial.constraints.values()) <= 0)
    assert any(trial.constraints["deadline"] > 0 for trial in searched.study.trials)


def test_a_large_grid_is_searched_genetically_the_same_way_each_time_and_finds_the_front():
    asked = task(small_grid=10, trials_beyond=400)
    once, twice = search(asked), search(asked)
    assert once.judged == twice.judged and not once.cut_short
    keys = [key(item.row.candidate) for item in once.judged]
    assert keys == sorted(set(keys)) and {key(c) for c in asked.first} <= set(keys)
    whole = search(task())

    def fastest(searched):
        return min(item.row["time_to_train_s"].value for item in searched.judged if item.row.feasible)

    assert fastest(once) == fastest(whole)


def test_the_time_limit_ends_a_genetic_search_and_is_reported():
    asked = task(small_grid=10, time_limit_s=0.0)
    searched = search(asked)
    assert searched.cut_short and {key(c) for c in asked.first} <= {key(i.row.candidate) for i in searched.judged}


def test_the_time_limit_leaves_the_table_of_a_small_grid_complete():
    asked = task(time_limit_s=0.0)
    assert len(search(asked).judged) == len(asked.grid)


def test_the_journal_holds_the_study_and_a_second_one_replaces_it(tmp_path):
    searched = search(task())
    for _ in range(2):
        write_journal(searched.study, tmp_path, lambda event: pytest.fail(event.message))
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "search.journal")))
    assert [s.study_name for s in optuna.get_all_study_summaries(storage)] == ["test"]
    loaded = optuna.load_study(study_name="test", storage=storage)
    assert [t.values for t in loaded.trials] == [t.values for t in searched.study.trials]
    assert [t.constraints for t in loaded.trials] == [t.constraints for t in searched.study.trials]


def test_a_journal_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    heard = []
    write_journal(search(task()).study, tmp_path / "file" / "journal", heard.append)
    assert [event.level for event in heard] == ["warning"] and "could not be recorded" in heard[0].message


def test_optuna_is_as_talkative_afterwards_as_before(capfd):
    level = optuna.logging.get_verbosity()
    search(task())
    assert optuna.logging.get_verbosity() == level
    assert capfd.readouterr() == ("", "")
