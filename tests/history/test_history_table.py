from __future__ import annotations

import csv
import io

import pytest
from history_factories import make_outcome

from tula_core.history import frame, rows, summary, to_csv

SLOW = {"step_time_s": 2.0, "time_to_train_s": 1.1}


def test_a_row_sets_predicted_beside_actual() -> None:
    (row,) = rows([make_outcome(factors=SLOW, accumulation=4, mitigation=("warmup",))])
    assert (row["job_name"], row["choice"], row["status"]) == ("small", "1x2x32x4+warmup", "FINISHED")
    assert (row["step_time_s_predicted"], row["step_time_s_actual"]) == (0.02, 0.04)
    assert row["step_time_s_error_pct"] == pytest.approx(-50) and row["step_time_s_inside"] is False
    assert row["time_to_train_s_inside"] is True


def test_what_a_killed_run_spent_is_no_error() -> None:
    killed = make_outcome(status="KILLED", failure="gone", factors={"time_to_train_s": 0.1})
    (row,) = rows([killed])
    assert row["time_to_train_s_actual"] == pytest.approx(10)
    assert row["time_to_train_s_error_pct"] is None and row["time_to_train_s_inside"] is None
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


def test_the_csv_and_the_frame_hold_the_rows() -> None:
    outcomes = [make_outcome("1"), make_outcome("2", factors=SLOW)]
    read = list(csv.DictReader(io.StringIO(to_csv(outcomes))))
    assert [row["job_id"] for row in read] == ["1", "2"]
    assert float(read[1]["step_time_s_actual"]) == 0.04
    assert list(frame(outcomes)["step_time_s_actual"]) == [0.02, 0.04]
    assert list(frame([]).columns) == list(frame(outcomes).columns)
    assert to_csv([]).count("\n") == 1
