from __future__ import annotations

import csv
import io

import pytest
from history_factories import make_outcome

from tula_core.history import summary, to_csv
from tula_core.records import Outcome, Stage

SLOW = {"step_time_s": 2.0, "time_to_train_s": 1.1}


def read(*outcomes: Outcome) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(outcomes))))


def test_a_row_sets_predicted_beside_actual() -> None:
    [row] = read(make_outcome(factors=SLOW, accumulation=4, mitigation=("warmup",)))
    assert (row["job_name"], row["accumulation"], row["mitigation"]) == ("small", "4", "warmup")
    assert (row["predicted_step_time_s"], row["actual_step_time_s"]) == ("0.02", "0.04")
    assert float(row["error_pct_step_time_s"]) == pytest.approx(-50)


def test_the_stages_that_trained_are_in_order_each_from_its_samples_on() -> None:
    alone = Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=64, accumulation=1)
    wide = Stage(from_samples=8512, nodes=1, processes_per_node=2, local_batch=64, accumulation=2)
    staged, unknown = read(make_outcome(stages=(alone, wide)), make_outcome())
    assert (staged["stages"], unknown["stages"]) == ("0:1x1x64x1 8512:1x2x64x2", "")


def test_what_a_killed_run_spent_is_no_error() -> None:
    killed = make_outcome(status="KILLED", failure="gone", factors={"time_to_train_s": 0.1})
    [row] = read(killed)
    assert float(row["actual_time_to_train_s"]) == pytest.approx(10)
    assert row["error_pct_time_to_train_s"] == ""
    assert summary([killed]) == {}


def test_the_summary_is_over_finished_jobs() -> None:
    outcomes = [
        make_outcome("1"),
        make_outcome("2", factors=SLOW),
        make_outcome("3", factors={"step_time_s": 0.75}),
        make_outcome("4", status="FAILED", failure="x", factors={"step_time_s": 100.0}),
    ]
    found = summary(outcomes)["step_time_s"]
    assert found.jobs == 3
    assert found.median_abs_error_pct == pytest.approx(100 / 3)
    assert found.coverage == pytest.approx(1 / 3)


def test_an_unknown_interval_leaves_coverage_unknown() -> None:
    blind = make_outcome(predicted_low={}, predicted_high={})
    assert summary([blind])["epochs"].coverage is None


def test_the_csv_has_a_header_and_a_row_per_run() -> None:
    assert [row["job_id"] for row in read(make_outcome("1"), make_outcome("2"))] == ["1", "2"]
    assert to_csv([]).count("\n") == 1
