"""The history and retraining as people read them: words for quantities, resumed runs judged fairly."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import flows_samples as samples
import pytest
from rich.console import Console

from flows import show, show_history
from tula_core.history import summary
from tula_core.records import Correction, MethodChange, MitigationEffect, Outcome, Stage
from tula_core.records.corrections import BUILTIN, MethodCorrection


def printed(printer: Any, *arguments: Any, width: int = 80) -> str:
    text = io.StringIO()
    printer(Console(file=text, width=width, highlight=False, markup=False), *arguments)
    return text.getvalue()


def retrained(**changes: Any) -> SimpleNamespace:
    card = MitigationEffect(log_work_sd=0.5)
    growth = MethodCorrection(shift=-0.4, spread=0.8, outcomes=9, jobs=3, card=card)
    quantity = Correction(log_bias=0.1, log_sd=0.1, outcomes=9)
    learnt = SimpleNamespace(by_quantity={"step_time_s": quantity}, by_method={"growth": growth})
    fields = {
        "promoted": True,
        "reason": "promoted: on workloads left out the error of step time goes from 10.5 % to 5.1 %",
        "champion": BUILTIN,
        "challenger": learnt,
        "champion_error": {"step_time_s": 0.1, "memory_bytes": 0.02},
        "challenger_error": {"step_time_s": 0.05, "memory_bytes": 0.02},
        "champion_method_error": {"growth": 0.1},
        "challenger_method_error": {"growth": 0.02},
        "replaced": {"growth": 2, "linear-lr + warmup": 1},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_history_fits_80_columns() -> None:
    runs = [samples.outcome(), samples.outcome(status="KILLED"), samples.outcome(attempt=2, target_reached=False)]
    text = printed(show_history.print_history, runs)
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("digits-cnn", "-50 %", "killed", "resumed", "target missed"):
        assert word in text


def test_history_shows_the_methods_and_the_stages_of_each_run() -> None:
    alone = Stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=64, accumulation=1)
    wide = Stage(from_samples=8512, nodes=1, processes_per_node=2, local_batch=128, accumulation=1)
    change = MethodChange(
        samples=100,
        epochs=1.0,
        seen_at_samples=200,
        dropped=("lars",),
        taken=("growth",),
        dropped_batch=256,
        taken_batch=256,
        cause="diverged",
        because="the loss became nan",
    )
    staged = samples.outcome(mitigation=("growth",), processes_per_node=2, stages=(alone, wide))
    changed = samples.outcome(mitigation=("linear-lr", "warmup"), method_changes=(change,))
    ended = samples.outcome(mitigation=("growth",), processes_per_node=2, stages=(alone,))  # before it widened
    shown = [history_of(run) for run in (staged, changed, ended)]
    layouts = [[line[16:29].strip() for line in lines] for lines in shown]
    assert layouts[0] == ["1 x 2", "128 x 1", "growth", "2 stages", "from 1 x 1"]
    assert layouts[1] == ["1 x 1", "128 x 1", "linear-lr", "+warmup"]
    assert layouts[2] == ["1 x 2", "128 x 1", "growth", "up to 1 x 1"]
    assert [lines[1].split()[-1] for lines in shown[:2]] == ["1", "methods"] and shown[1][2].endswith("changed")


def history_of(run: Outcome) -> list[str]:
    """Return the lines of the one row of the printed history."""
    lines = printed(show_history.print_history, [run]).splitlines()
    assert max(len(line) for line in lines) <= 80
    return [line.rstrip() for line in lines[2:]]


def test_a_resumed_run_is_not_held_against_a_forecast_of_one_attempt() -> None:
    once, resumed = samples.outcome(), samples.outcome(job_id="run-2", attempt=3)
    alone = printed(show_history.print_history, [resumed])
    assert "-50 %" not in alone and "84.0 s" in alone
    assert "1 run was resumed after a stop: its time and cost are those of all attempts" in alone
    assert "resumed" not in printed(show_history.print_history, [once])
    both = summary([once, resumed])
    assert (both["time_to_train_s"].jobs, both["step_time_s"].jobs, both["accuracy"].jobs) == (1, 2, 2)
    assert both["time_to_train_s"].coverage == 0.0 and both["step_time_s"].coverage == 1.0
    text = printed(show.print_outcome, resumed)
    time = next(line for line in text.splitlines() if line.startswith("time to train"))
    assert time.split()[-2:] == ["-", "resumed"] and "outside" not in time
    assert "It took 3 attempts and spent what all of them did" in text
    assert resumed.error_pct("time_to_train_s") is None and resumed.error_pct("step_time_s") is not None


def test_a_run_that_was_killed_again_is_killed_and_not_resumed() -> None:
    again = samples.outcome(attempt=2, status="KILLED")
    assert "resumed" not in printed(show_history.print_history, [again])
    assert "It took 2 attempts" not in printed(show.print_outcome, again)


def test_retraining_speaks_in_words() -> None:
    text = printed(show_history.print_retrain, retrained())
    assert max(len(line) for line in text.splitlines()) <= 80
    rows = {line.rsplit(None, 4)[0]: line.split()[-4:] for line in text.splitlines() if line.count(" %") == 2}
    assert rows["step time"] == ["10.5", "%", "5.1", "%"]
    assert rows["gap to the best metric, growth"] == ["10.5", "%", "2.0", "%"]
    flat = " ".join(text.split())
    assert "step_time_s" not in flat and "memory_bytes" not in flat
    assert "- growth: at large batches it takes 18 % fewer samples than was known before" in flat
    assert "(90 %: 58 % fewer to 58 % more), by 9 runs of 3 workloads here" in flat
    assert "growth was given up on the way in 2 runs: that tells against it" in flat
    assert "linear-lr + warmup was given up on the way in a run" in flat


@pytest.mark.parametrize("challenger", [None, SimpleNamespace(by_quantity={}, by_method={})])
def test_where_no_method_was_learnt_none_is_spoken_of(challenger: Any) -> None:
    report = retrained(
        challenger=challenger, champion_method_error={}, challenger_method_error={}, replaced={}, promoted=False
    )
    text = printed(show_history.print_retrain, report)
    assert "method" not in text and "gap" not in text
