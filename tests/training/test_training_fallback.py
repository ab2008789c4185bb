"""A wrong guess of the methods, seen in training and answered by the next best."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train_helpers import hand_made_plan

from tula_core.errors import DivergedError, StoppedError
from tula_core.progress import Event, silent
from tula_core.records import Candidate, Outcome, Plan, Row, load, save
from tula_core.tracking.spent import attempt_folder, part_folder
from tula_core.training.fallback.changes import Course, course_of, keep_course
from tula_core.training.fallback.next_row import next_row, no_other, reference_row
from tula_core.training.run import Attempt, run_attempt

SAMPLES = 203  # of an epoch of the tiny workloads
NEVER_REACHED = [[epoch, 0.984, 0.99, 0.996] for epoch in range(1, 13)]
ALWAYS_HELD = [[epoch, 0.0, 0.5, 1.0] for epoch in range(1, 13)]
METHODS = ("linear-lr", "warmup")


def guessed(
    workload: str, *, expected: Any = None, mitigation: Any = "auto", processes: int = 1, batch: int = 64
) -> Plan:
    """Return a plan whose choice is a large batch, with the curve that is expected of it."""
    plan = hand_made_plan(workload, processes=processes, local_batch=batch // processes)
    job = plan.job.model_copy(update={"mitigation": mitigation})
    return replace(plan, job=job, facts={**plan.facts, "expected_curve": expected})


def train(
    plan: Plan,
    folder: Path,
    *,
    number: int = 1,
    resume: bool = False,
    said: list[Event] | None = None,
    next_best: Any = no_other,
    points: list[Any] | None = None,
) -> Outcome:
    attempt = Attempt(
        plan=plan, row=plan.table[0], job_id="job", number=number, folder=folder, resume=resume, next_best=next_best
    )
    heard = [] if points is None else points
    listener = silent if said is None else said.append
    outcome, error = run_attempt(attempt, listener, lambda samples, figures: heard.append((samples, figures)))
    assert error is None and outcome.status == "FINISHED"
    return outcome


def state(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    expected, got = state(one)["network"], state(other)["network"]
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name


@pytest.mark.parametrize("processes", [1, 2])
def test_methods_that_diverge_twice_are_dropped_for_the_reference_batch(tmp_path: Path, processes: int) -> None:
    said: list[Event] = []
    points: list[Any] = []
    plan = guessed("unstable_at_a_large_batch", processes=processes, batch=128)
    outcome = train(plan, tmp_path, said=said, points=points)
    [change] = outcome.method_changes
    assert (change.cause, change.dropped, change.taken) == ("diverged", METHODS, ())
    assert (change.dropped_batch, change.taken_batch) == (128, 16)
    assert (outcome.mitigation, outcome.local_batch) == ((), 16 // processes)
    assert outcome.learning_rate == 0.4 and outcome.learning_rate_reductions == 0
    assert outcome.actual["epochs"] == 6 and outcome.curve[-1].metric > 0.6
    warnings = [event.message for event in said if event.level == "warning"]
    assert "learning rate lowered from 3.2 to 1.6" in warnings[0] and len(warnings) == 2
    assert "a wrong guess: the loss diverged a second time" in warnings[1]
    assert "on no method at global batch 16 instead of linear-lr + warmup at global batch 128" in warnings[1]
    assert any("learning rate 0.4 at batch 16 -> 0.4 (not scaled)" in event.message for event in said)
    assert (change.samples, {"method_changes": 1.0}) in points
    noted = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert noted[0]["samples"] == change.samples and noted[0]["because"] == change.because


def test_a_curve_below_its_forecast_is_answered_with_the_next_best_row(tmp_path: Path) -> None:
    asked: list[Sequence[Candidate]] = []
    plan = guessed("plain", expected=NEVER_REACHED)
    recipe = plan.job.recipe.model_copy(update={"epochs": 6})
    plan = replace(plan, job=plan.job.model_copy(update={"recipe": recipe}))
    better = replace(plan.table[0], candidate=replace(plan.table[0].candidate, mitigation=("sqrt-lr",), local_batch=32))

    def next_best(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
        asked.append(tried)
        return better if len(tried) == 1 else None

    said: list[Event] = []
    outcome = train(plan, tmp_path, said=said, next_best=next_best)
    [change] = outcome.method_changes
    assert (change.cause, change.taken, change.taken_batch) == ("below forecast", ("sqrt-lr",), 32)
    assert change.seen_at_samples == 2 * SAMPLES and change.samples in (0, SAMPLES, 2 * SAMPLES)
    assert outcome.mitigation == ("sqrt-lr",) and outcome.actual["epochs"] == 6
    assert [point.samples for point in outcome.curve] == [SAMPLES * epoch for epoch in range(1, 7)]
    assert [stage.from_samples for stage in outcome.stages] == sorted({0, change.samples})
    assert outcome.stages[-1].local_batch == 32
    [warning] = [event.message for event in said if event.level == "warning"]
    assert "accuracy was" in warning and "forecast 0.9900 (0.9840 to 0.9960)" in warning
    assert "the run then takes about" in warning and "instead of the 1 s that were forecast" in warning
    # What both spent was forecast as one bill; nothing else may be held against a row that did not train to the end.
    known = {name for name, value in outcome.predicted.items() if value is not None}
    assert known == {"time_to_train_s", "node_hours", "cost_usd", "energy_j"}
    assert not (tmp_path / "good.pt").exists()
    save(outcome, tmp_path / "outcome.json")
    assert load(Outcome, tmp_path / "outcome.json") == outcome


@pytest.mark.parametrize(("processes", "expected"), [(1, ALWAYS_HELD), (2, ALWAYS_HELD)])
def test_a_healthy_run_is_the_same_bit_for_bit(tmp_path: Path, processes: int, expected: Any) -> None:
    watched = train(guessed("plain", expected=expected, processes=processes), tmp_path / "watched")
    alone = train(guessed("plain", processes=processes), tmp_path / "alone")
    kept = [state(tmp_path / name)["progress"]["good_samples"] for name in ("watched", "alone")]
    assert kept == [2 * SAMPLES, 0] and not (tmp_path / "watched" / "good.pt").exists()
    assert_same_weights(tmp_path / "watched", tmp_path / "alone")
    assert [point.metric for point in watched.curve] == [point.metric for point in alone.curve]
    assert watched.method_changes == alone.method_changes == ()


def test_methods_that_a_person_named_are_kept_and_the_fall_is_said(tmp_path: Path) -> None:
    said: list[Event] = []
    named = train(guessed("plain", expected=NEVER_REACHED, mitigation=list(METHODS)), tmp_path / "named", said=said)
    train(guessed("plain", mitigation=list(METHODS)), tmp_path / "alone")
    assert named.method_changes == () and named.mitigation == METHODS
    [warning] = [event.message for event in said if event.level == "warning"]
    assert warning.startswith("below the forecast: accuracy was") and "the job names its methods" in warning
    assert_same_weights(tmp_path / "named", tmp_path / "alone")
    assert named.predicted["accuracy"] == 1.0


def test_a_run_stopped_before_the_change_was_kept_makes_it_when_it_is_resumed(tmp_path: Path) -> None:
    plan = guessed("slow", expected=NEVER_REACHED)

    def stop(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
        if (tmp_path / "attempt-1" / "result.json").exists():
            raise StoppedError("told to stop", int(signal.SIGTERM))
        return None

    attempt = Attempt(
        plan=plan, row=plan.table[0], job_id="job", number=1, folder=tmp_path, resume=False, next_best=stop
    )
    stopped, error = run_attempt(attempt, silent, lambda samples, figures: None)
    assert isinstance(error, StoppedError) and stopped.status == "KILLED" and stopped.method_changes == ()
    assert (tmp_path / "good.pt").exists() and stopped.actual["time_to_train_s"] is not None
    resumed = train(plan, tmp_path, number=2, resume=True)
    [change] = resumed.method_changes
    assert change.cause == "below forecast" and resumed.actual["epochs"] == 12


def test_where_nothing_is_left_to_try_the_rate_is_lowered_as_before(tmp_path: Path) -> None:
    plan = guessed("hopeless")
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=1, folder=tmp_path, resume=False)
    outcome, error = run_attempt(attempt, silent, lambda samples, figures: None)
    assert isinstance(error, DivergedError) and outcome.status == "FAILED"
    assert len(outcome.method_changes) == 1 and "after 5 reductions" in str(outcome.failure)


SCRIPT = """
import sys
from pathlib import Path
from tula_core.records import Plan, load
from tula_core.training.run import Attempt, run_attempt

folder = Path(sys.argv[1])
plan = load(Plan, folder / "plan.json")
attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=1, folder=folder, resume=False)
run_attempt(attempt, lambda event: print(event.message, flush=True), lambda samples, figures: None)
"""


def test_a_run_killed_after_the_change_resumes_to_the_same_weights(tmp_path: Path) -> None:
    plan = guessed("slow", expected=NEVER_REACHED)
    undisturbed = train(plan, tmp_path / "undisturbed")
    folder = tmp_path / "killed"
    save(plan, folder / "plan.json")
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 6:"):
                process.send_signal(signal.SIGKILL)
    _wait_for_workers(part_folder(attempt_folder(folder, 1), 2))

    def forgotten(plan: Plan, row: Row, tried: Sequence[Candidate]) -> Row | None:
        return replace(row, candidate=replace(row.candidate, mitigation=("legw",)))

    resumed = train(plan, folder, number=2, resume=True, next_best=forgotten)
    assert resumed.method_changes == undisturbed.method_changes and resumed.mitigation == ()
    assert resumed.stages == undisturbed.stages
    assert [point.metric for point in resumed.curve] == [point.metric for point in undisturbed.curve]
    assert resumed.actual["steps"] == undisturbed.actual["steps"]
    assert_same_weights(tmp_path / "undisturbed", folder)


def _wait_for_workers(task_folder: Path) -> None:
    events, last = task_folder / "events.jsonl", -1
    while events.stat().st_size != last:
        last = events.stat().st_size
        time.sleep(1.5)


def test_the_reference_batch_is_taken_once_and_only_where_it_differs() -> None:
    plan = guessed("plain", processes=2, batch=128)
    row = plan.table[0]
    reference = reference_row(plan, row, (row.candidate,))
    assert reference is not None and reference.candidate.mitigation == ()
    assert (reference.candidate.local_batch, reference.candidate.accumulation) == (8, 1)
    assert next_row(plan, reference, (row.candidate, reference.candidate), no_other) is None
    small = replace(row, candidate=replace(row.candidate, local_batch=8))  # the linear rule changes nothing there
    assert reference_row(plan, small, (small.candidate,)) is None
    assert next_row(plan, small, (small.candidate,), lambda plan, row, tried: plan.table[0]) is None
    averaged = replace(row.candidate, local_batch=8, mitigation=("ema",))
    assert reference_row(plan, replace(row, candidate=averaged), (averaged,)) is not None
    narrow = replace(row, candidate=replace(row.candidate, local_batch=3, accumulation=20))
    found = reference_row(plan, narrow, (narrow.candidate,))
    assert found is not None and (found.candidate.local_batch, found.candidate.accumulation) == (3, 3)
    assert reference_row(plan, narrow, (narrow.candidate, found.candidate)) is None


def test_the_process_that_starts_the_workers_needs_no_torch() -> None:
    code = "import sys; import tula_core.training.run; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])


def test_the_rows_of_a_run_are_kept_in_its_folder(tmp_path: Path) -> None:
    plan = guessed("plain")
    row = plan.table[0]
    assert course_of(row, tmp_path) == Course(rows=(row,))
    (tmp_path / "changes.json").write_text("{")
    with pytest.raises(ValueError, match=r"changes.json' is damaged .* Start the run anew without --resume"):
        course_of(row, tmp_path)
    keep_course(Course(rows=(row,)), tmp_path)
    assert course_of(row, tmp_path) == Course(rows=(row,))
    other = replace(row, measured=False)
    assert course_of(other, tmp_path).row == other
