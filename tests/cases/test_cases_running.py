"""Public reports of a run that said something absurd while it went on, or nothing, P54, P60 and P62."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from train_helpers import hand_made_plan

from tula_core.engine.launch import LaunchResult, WorkerTask
from tula_core.job import Recipe
from tula_core.mitigations.compose import Methods
from tula_core.mitigations.rates.plan import LearningRate
from tula_core.progress import Event
from tula_core.records import Interval
from tula_core.records.candidate import UNKNOWN
from tula_core.training import run as run_module
from tula_core.training.drift import DriftAlarm, beside_steps_s
from tula_core.training.eta import Remaining
from tula_core.training.rate import RunRate
from tula_core.training.run import Attempt, run_attempt

SAMPLES = 203  # of the tiny workload


def test_p60_there_is_no_estimate_before_there_is_work() -> None:
    # Elsewhere: the first time left is 0 s, or a hundred million.
    remaining = Remaining(total_samples=100_000, epoch_samples=1000)
    said = [remaining.after(100 * (step + 1), speed) for step, speed in enumerate((1.6, 8.0, 1000.0, 1000.0))]
    assert said[:3] == [None, None, None]
    assert said[3] == pytest.approx((100_000 - 400) / 1000)


@pytest.mark.parametrize("speed", [0.0, float("nan"), float("inf")])
def test_p60_no_speed_gives_no_estimate(speed: float) -> None:
    remaining = Remaining(total_samples=1000, epoch_samples=100)
    assert [remaining.after(10 * step, speed) for step in range(6)] == [None] * 6


def test_p60_the_rest_counts_the_evaluations_to_come() -> None:
    remaining = Remaining(total_samples=1000, epoch_samples=100)
    remaining.evaluated(5.0)
    assert [remaining.after(step, 100.0) for step in (10, 20, 30, 100)][-1] == pytest.approx(9.0 + 9 * 5.0)


def test_p60_the_rest_counts_the_starts_of_processes_to_come() -> None:
    remaining = Remaining(total_samples=1000, epoch_samples=1000, takeovers=(50, 200, 500))
    remaining.started(7.0)
    said = [remaining.after(step, 100.0) for step in (10, 20, 30, 100, 200, 500)]
    assert said[3:] == pytest.approx([9.0 + 2 * 7.0, 8.0 + 7.0, 5.0])


def test_p60_one_pause_of_the_machine_does_not_rule_the_estimate() -> None:
    remaining = Remaining(total_samples=1000, epoch_samples=1000)
    speeds = (1.0, 100.0, 100.0, 0.001, 100.0, 100.0)
    assert [remaining.after(100 * number, speed) for number, speed in enumerate(speeds)][-1] == pytest.approx(5.0)


@pytest.mark.parametrize(("growth", "first_said"), [(0.02, 12), (0.0, None), (0.1, 3)])
def test_p62_epochs_that_get_slower_raise_an_alarm(growth: float, first_said: int | None) -> None:
    # Elsewhere: each epoch takes 2 % longer than the last, and the bill is twice the forecast before anybody looks.
    alarm = DriftAlarm(Interval(value=0.1, low=0.08, high=0.125))
    said = []
    for epoch in range(1, 31):
        for _ in range(5):
            alarm.add(3 * 0.1 * (1 + growth) ** epoch, 3)
        if alarm.end_epoch(epoch, seconds_left=60.0) is not None:
            said.append(epoch)
    assert next(iter(said), None) == first_said
    assert len(said) < 15, "said anew where it has become clearly worse, not at every epoch"


def test_p62_a_cold_start_or_a_pause_is_no_drift() -> None:
    alarm = DriftAlarm(Interval(value=0.1, low=0.08, high=0.125))
    for seconds, steps in ((60.0, 1), (0.1, 1), (2.0, 20), (5.0, 1), (0.9, 1), (-3.0, -4), (1.0, 0)):
        alarm.add(seconds, steps)
    assert alarm.end_epoch(1, None) is None


def test_p62_a_forecast_that_is_unknown_raises_none() -> None:
    alarm = DriftAlarm(Interval(value=None, low=None, high=None))
    alarm.add(1.0, 1)
    assert alarm.end_epoch(1, None) is None


@pytest.mark.parametrize("slow", [0.2, 0.4, 0.45, 0.6])
@pytest.mark.parametrize("every", [True, False])
def test_p62_slow_steps_are_seen_however_many_are_fast(slow: float, every: bool) -> None:
    # Elsewhere: the middle step is held against the plan, and a run whose mean step is five times too long passes.
    alarm = DriftAlarm(Interval(value=0.1, low=0.08, high=0.125))
    alarm.add(0.1, 1)
    assert alarm.end_epoch(0, None) is None
    for number in range(100):
        is_slow = number % 20 < 20 * slow if every else number < 100 * slow
        alarm.add(1.0 if is_slow else 0.1, 1)
    said = alarm.end_epoch(1, None)
    assert said is not None and "the plan forecast 100 ms" in said
    if every:
        assert f"a step takes {1e3 * (slow + 0.1 * (1 - slow)):.3g} ms" in said


def test_p62_evaluations_beyond_the_plan_raise_an_alarm() -> None:
    # Elsewhere: only steps are watched, and an evaluation of an hour after each minute of training passes.
    alarm = DriftAlarm(Interval(value=0.1, low=0.08, high=0.125), beside_s=1.5)
    said = []
    for epoch, evaluation_s in enumerate((1.0, 2.0, 60.0, 60.0, 3600.0), start=1):
        for _ in range(10):
            alarm.add(1.0, 10)
        said.append(alarm.end_epoch(epoch, None, evaluation_s))
    assert [text is not None for text in said] == [False, False, True, False, True]
    assert "of which its evaluation 60 s, and the plan allowed at most 14 s" in str(said[2])


def known(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def test_p62_what_a_plan_has_for_an_epoch_beside_its_steps() -> None:
    plan = hand_made_plan("plain")
    forecast = {"time_to_train_s": 100.0, "steps": 400.0, "step_time_s": 0.2, "epochs": 4.0}
    row = dataclasses.replace(plan.table[0], forecast={name: known(value) for name, value in forecast.items()})
    assert beside_steps_s(row) == pytest.approx(5.0)
    unknown = dataclasses.replace(row, forecast={**row.forecast, "steps": UNKNOWN})
    assert beside_steps_s(unknown) is None


def test_p60_slow_steps_count_in_the_time_left_with_all_their_seconds() -> None:
    # Elsewhere: the middle speed is taken, and a run of which 40 % are ten times slower ends in a fifth of the time.
    remaining, left = Remaining(total_samples=100_000, epoch_samples=1000), None
    for number in range(1, 101):
        left = remaining.after(100 * number, 100.0 if number % 5 < 2 else 1000.0)
    assert left == pytest.approx(900 * (0.4 * 1.0 + 0.6 * 0.1))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The events of a run of three epochs whose steps take 0.9 s, then 2.5 s; the plan's interval is 0.5 to 2 s."""
    rate = RunRate(LearningRate.plan(Recipe(), 48, (), 1000), Methods(), ()).facts()
    samples, events = 0, [{"kind": "ready", "peak_learning_rate": 0.1, "rate": rate, "device": "cpu"}]
    for epoch, step_s in enumerate((0.9, 2.5, 2.5), start=1):
        for _ in range(4):
            samples += 48
            events.append(progress(samples, 16 / step_s, epoch))
        figures = dict.fromkeys(("learning_rate", "train_loss", "metric", "elapsed_s"), 0.5)
        events.append(
            {"kind": "evaluation", "seconds": 1.0, "samples": samples, "epochs": epoch, "steps": 1, **figures}
        )

    def launch(task: WorkerTask, on_event: Any) -> LaunchResult:
        for event in events:
            on_event(event)
        return LaunchResult(result={}, failure=None, start_up_s=0.1, seconds=1.0)

    monkeypatch.setattr(run_module, "launch", launch)
    heard: list[Event] = []
    plan = hand_made_plan("plain")
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="run", number=1, folder=tmp_path, resume=False)
    run_attempt(attempt, heard.append, lambda samples, figures: None)
    return heard


def progress(samples: int, images_per_s: float, epoch: float) -> dict[str, Any]:
    figures = {"loss": 0.1, "learning_rate": 0.1, "images_per_s": images_per_s, "epoch": epoch}
    return {"kind": "progress", "samples": samples, "steps": samples // 16, **figures}


def test_p62_the_alarm_reaches_whoever_watches_the_run(told: list[Event]) -> None:
    warnings = [event.message for event in told if event.level == "warning"]
    assert len(warnings) == 1
    assert "in epoch 2 a step takes 2.5e+03 ms, the plan forecast 1e+03 ms (500 to 2e+03)" in warnings[0]


def test_p60_the_time_left_is_none_at_first_and_then_a_number(told: list[Event]) -> None:
    left = [event.data["seconds_left"] for event in told if "seconds_left" in event.data]
    assert left[:3] == [None, None, None]
    assert all(0 <= value < 1e4 for value in left[3:])
