from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tula_core.bench import load_kind
from tula_core.bench.kind import PAIR_COLUMNS
from tula_core.bench.run import run_bench, write_predictions
from tula_core.bench.scaling_data import read_questions, read_runs
from tula_core.bench.scaling_learn import START, Lesson, learn_priors, lessons
from tula_core.errors import InputError
from tula_core.models.hardware.fleet import fit_fleet
from tula_core.models.hardware.fleet_priors import FleetPriors

SHAPES = ((1, 256), (8, 64), (64, 16))


def law_s(nodes: int, batch: float, sample_s: float) -> float:
    return sample_s * (batch + 8 * (1 + 0.05 * float(np.log2(nodes)))) * (1.08 if nodes > 1 else 1.0)


def family_name(bench: str, number: int) -> str:
    return f"{bench}|{number}.0|team{number}|fast|x8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two benchmarks with four families each, on one, eight and 64 nodes; the largest of each family is asked."""
    rng = np.random.default_rng(0)
    rows, tasks, answers = [], [], []
    for bench, sample_s in (("one", 1e-3), ("two", 4e-3)):
        for number in range(4):
            family, pace = family_name(bench, number), sample_s * float(np.exp(0.1 * rng.standard_normal()))
            times = {n: law_s(n, b, pace) * float(np.exp(0.02 * rng.standard_normal())) for n, b in SHAPES}
            for nodes, batch in SHAPES:
                row = {
                    "bench": bench,
                    "round": f"{number}.0",
                    "submitter": f"team{number}",
                    "accel": "fast",
                    "accelerators_per_node": 8,
                    "nodes": nodes,
                    "n_accel": 8 * nodes,
                    "local_batch": batch,
                    "status": "success",
                    "time_per_step_s": times[nodes],
                    "time_method": "epoch_events",
                }
                rows += [row, row]
            nodes, batch = SHAPES[-1]
            shown = [
                {"nodes": n, "n_accel": 8 * n, "local_batch": b, "time_per_step_s": times[n]} for n, b in SHAPES[:2]
            ]
            task = {
                "submission_id": f"{family}|{nodes}",
                "family": family,
                "known": json.dumps(shown),
                "bench": bench,
                "accel": "fast",
                "nodes": nodes,
                "n_accel": 8 * nodes,
                "local_batch": batch,
            }
            tasks.append(task)
            answers.append({"submission_id": task["submission_id"], "time_per_step_s": times[nodes]})
    runs = pd.DataFrame(rows)
    runs[runs["bench"] == "one"].drop(columns="bench").to_csv(tmp_path / "results_one.csv", index=False)
    runs[runs["bench"] == "two"].to_csv(tmp_path / "results_rest.csv", index=False)
    pd.DataFrame(tasks).to_csv(tmp_path / "scaling_tasks.csv", index=False)
    pd.DataFrame(answers).to_csv(tmp_path / "submissions.csv", index=False)
    return tmp_path


def log_density(given: list[Lesson], priors: FleetPriors) -> float:
    total = 0.0
    for lesson in given:
        time_s, log_sd = fit_fleet(lesson.runs, lesson.time_s, priors).predict(lesson.asked)
        error = (lesson.log_time - np.log(time_s)) / log_sd
        total -= float(np.sum(np.log(log_sd) + 2.5 * np.log1p(error**2 / 4)))
    return total


def change(path: Path, **columns: object) -> None:
    frame = pd.read_csv(path)
    for name, value in columns.items():
        frame[name] = frame[name].astype(object)
        frame.loc[0, name] = value
    frame.to_csv(path, index=False)


def test_larger_runs_are_forecast_from_smaller_ones(folder: Path) -> None:
    result = run_bench("scaling", folder)
    table = result.tables[0].frame.set_index("benchmark")
    assert table.loc["all", "tasks"] == 8
    assert table.loc["all", "Tula: mean error %"] < 10 < table.loc["all", "plain law: mean error %"]
    assert table.loc["all", "Tula: inside 90 % interval"] > 80
    assert (result.predictions["low"] < result.predictions["time_per_step_s"]).all()
    assert (result.predictions["time_per_step_s"] < result.predictions["high"]).all()


def test_predictions_are_the_same_every_time_and_need_no_answers(folder: Path, tmp_path: Path) -> None:
    first = run_bench("scaling", folder)
    (folder / "submissions.csv").unlink()
    second = run_bench("scaling", folder)
    assert second.tables == []
    for name, result in (("a.csv", first), ("b.csv", second)):
        write_predictions(result.predictions, tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_nothing_as_large_as_what_is_asked_may_be_known(folder: Path) -> None:
    runs = read_runs(folder)
    for question in read_questions(folder, runs):
        assert (question.known["n_accel"] < question.asked.accelerators[0]).all()
        assert (question.known["bench"] == question.bench).all()
    largest = runs["n_accel"] == runs["n_accel"].max()
    before = load_kind("scaling").predict(folder)
    changed = pd.read_csv(folder / "results_rest.csv")
    changed.loc[changed["n_accel"] == 512, "time_per_step_s"] *= 10
    changed.to_csv(folder / "results_rest.csv", index=False)
    pd.testing.assert_frame_equal(before, load_kind("scaling").predict(folder))
    assert largest.any()


def test_of_a_strange_submitter_only_the_task_tells(folder: Path) -> None:
    runs = read_runs(folder)
    for question in read_questions(folder, runs, strange=True):
        team = str(question.asked.family[0]).split("|")[2]
        own = question.known[question.known["submitter"] == team]
        assert set(own["family"]) == {question.asked.family[0]}


def test_times_that_are_not_above_zero_are_not_used(folder: Path) -> None:
    change(folder / "results_one.csv", time_per_step_s=-0.5)
    assert (read_runs(folder)["time_per_step_s"] > 0).all()
    bad = [{"nodes": 1, "n_accel": 8, "local_batch": 256, "time_per_step_s": -0.1}]
    change(folder / "scaling_tasks.csv", known=json.dumps(bad))
    first = run_bench("scaling", folder).predictions.iloc[0]
    assert 0 < first["low"] < first["time_per_step_s"] < first["high"]
    # Its own pace is unknown, so that the interval is wider than the others'.
    assert first["high"] / first["low"] > 1.3


@pytest.mark.parametrize("columns", [{"bench": "three"}, {"n_accel": 1, "nodes": 1}])
def test_a_task_of_which_nothing_is_known_has_a_very_wide_forecast(folder: Path, columns: dict[str, object]) -> None:
    change(folder / "scaling_tasks.csv", known="[]", **columns)
    first = run_bench("scaling", folder).predictions.iloc[0]
    assert first["low"] < first["time_per_step_s"] < first["high"] and first["high"] / first["low"] > 100


def test_text_and_blank_columns_among_the_runs_do_no_harm(folder: Path) -> None:
    whole = run_bench("scaling", folder).predictions
    path = folder / "results_one.csv"
    runs = pd.read_csv(path).astype({"time_per_step_s": object})
    runs.loc[runs["n_accel"] == 512, "time_per_step_s"] = "abc"
    runs.to_csv(path, index=False)
    pd.testing.assert_frame_equal(run_bench("scaling", folder).predictions, whole)
    runs.assign(submitter="", time_method=None).to_csv(path, index=False)
    assert run_bench("scaling", folder).predictions["time_per_step_s"].notna().all()


def test_tasks_that_tell_all_need_no_other_runs(folder: Path) -> None:
    for path in folder.glob("results_*.csv"):
        path.unlink()
    result = run_bench("scaling", folder)
    assert (result.predictions["time_per_step_s"] > 0).all() and len(result.predictions) == 8


@pytest.mark.parametrize("answer", ["abc", "", -1.0])
def test_an_answer_that_is_none_is_not_counted(folder: Path, answer: object) -> None:
    answers = pd.read_csv(folder / "submissions.csv").astype({"time_per_step_s": object})
    answers.loc[0, "time_per_step_s"] = answer
    answers.to_csv(folder / "submissions.csv", index=False)
    result = run_bench("scaling", folder)
    table = result.tables[0].frame.set_index("benchmark")
    assert len(result.predictions) == 8 and table.loc["all", "tasks"] == 7 and not result.warning


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("known", "not json", "JSON list"),
        ("known", '[{"nodes": "x"}]', "JSON list"),
        *(("known", given, "JSON list") for given in ("{}", "[{}]", '[{"nodes": 1}]', "null", "[null]")),
        ("nodes", 0, "above 0"),
    ],
)
def test_a_wrong_task_is_named(folder: Path, column: str, value: object, message: str) -> None:
    change(folder / "scaling_tasks.csv", **{column: value})
    with pytest.raises(InputError, match=message):
        run_bench("scaling", folder)


def test_a_file_without_a_column_is_named(folder: Path) -> None:
    frame = pd.read_csv(folder / "results_one.csv").drop(columns="status")
    frame.to_csv(folder / "results_one.csv", index=False)
    with pytest.raises(InputError, match=r"results_one\.csv lacks the column status"):
        run_bench("scaling", folder)


def test_learning_finds_priors_that_forecast_better_than_the_start(folder: Path) -> None:
    given = lessons(read_runs(folder))
    assert sum(len(lesson.log_time) for lesson in given) == 16
    found = learn_priors(given, evaluations=60)
    assert FleetPriors.from_dict(found.to_dict()) == found
    assert log_density(given, found) > log_density(given, START)
    assert found.interval_factor > 0


def test_pairs_hold_each_forecast_beside_its_answer(folder: Path) -> None:
    kind = load_kind("scaling")
    assert kind.pairs is not None
    predictions = kind.predict(folder)
    frame = kind.pairs(folder, predictions)
    assert frame is not None
    assert tuple(frame.columns) == PAIR_COLUMNS
    assert set(frame["group"]) == {"one", "two"}
    assert len(frame) == len(predictions)
    (folder / "submissions.csv").unlink()
    assert kind.pairs(folder, predictions) is None
