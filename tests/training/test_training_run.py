import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train_helpers import hand_made_plan

from tula_core.errors import DivergedError, InputError, RunError, StoppedError
from tula_core.progress import Event, silent
from tula_core.records import Outcome, Plan, load, save
from tula_core.tracking.spent import attempt_seconds
from tula_core.training.run import Attempt, run_attempt


def attempt(plan: Plan, folder: Path, number: int = 1, resume: bool = False) -> Attempt:
    return Attempt(plan=plan, row=plan.table[0], job_id="job", number=number, folder=folder, resume=resume)


def train(
    plan: Plan, folder: Path, number: int = 1, resume: bool = False, said: list[Event] | None = None
) -> tuple[Outcome, BaseException | None]:
    listener = silent if said is None else said.append
    return run_attempt(attempt(plan, folder, number, resume), listener, lambda samples, figures: None)


def weights(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state


def test_a_run_reaches_its_last_epoch_and_counts_all_it_did(tmp_path: Path) -> None:
    points: list[int] = []
    outcome, error = run_attempt(
        attempt(hand_made_plan("plain"), tmp_path), silent, lambda samples, figures: points.append(samples)
    )
    assert error is None and outcome.status == "FINISHED"
    assert outcome.actual["epochs"] == 3.0
    assert outcome.actual["steps"] == 3 * math.ceil(203 / 16)
    assert [point.samples for point in outcome.curve] == [203, 406, 609]
    accuracy, step_time_s, total_s = (outcome.actual[name] for name in ("accuracy", "step_time_s", "time_to_train_s"))
    assert accuracy is not None and accuracy == outcome.curve[-1].metric > 0.5
    assert step_time_s is not None and total_s is not None and 0 < step_time_s * 39 < total_s
    assert outcome.actual["memory_bytes"] is not None and outcome.actual["memory_bytes"] > 50e6
    assert points == sorted(points) and points[-1] == 609


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_that_the_last_update_ruined_are_neither_judged_nor_kept(tmp_path: Path, processes: int) -> None:
    said: list[Event] = []
    plan = hand_made_plan("poisoned", processes=processes, local_batch=16 // processes)
    outcome, error = train(plan, tmp_path, said=said)
    assert error is None and outcome.learning_rate_reductions == 1
    assert outcome.actual["steps"] == 39
    assert [point.samples for point in outcome.curve] == [203, 406, 609]
    assert all(math.isfinite(point.train_loss) for point in outcome.curve) and outcome.curve[-1].metric > 0.5
    assert [event.message for event in said if event.level == "warning"][0].startswith("the loss became nan after 203")


def test_a_full_disk_is_an_attempt_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(task: Any, on_event: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tula_core.training.run.launch", full)
    outcome, error = train(hand_made_plan("plain"), tmp_path)
    assert outcome.status == "FAILED" and isinstance(error, RunError)
    assert "No space left on device" in str(outcome.failure) and "go on with --resume" in str(error)


def test_a_plan_for_other_data_is_refused(tmp_path: Path) -> None:
    plan = hand_made_plan("plain")
    outcome, error = train(replace(plan, facts={**plan.facts, "train_samples": 300}), tmp_path)
    assert outcome.status == "FAILED" and isinstance(error, InputError)
    assert "made for 300 training samples, now there are 203" in str(error)


def test_a_plan_for_another_kind_of_device_is_said_to_be_one(tmp_path: Path) -> None:
    said: list[Event] = []
    plan = hand_made_plan("plain")
    train(replace(plan, hardware={**plan.hardware, "device": "cuda"}), tmp_path, said=said)
    assert [e.message for e in said if e.level == "warning"] == [
        "the plan was measured on cuda, this run is on cpu: its forecasts of time, memory and cost do not hold here. "
        "Plan again on this machine."
    ]


def test_uneven_shares_and_loader_workers_give_the_same_weights(tmp_path: Path) -> None:
    layouts = {"alone": (1, 18, 1, {}), "other": (2, 3, 3, {"loader_workers": 1, "channels_last": True})}
    for name, (processes, local_batch, accumulation, changes) in layouts.items():
        plan = hand_made_plan(
            "double_precision", processes=processes, local_batch=local_batch, accumulation=accumulation
        )
        recipe = plan.job.recipe.model_copy(update=changes)
        _, error = train(replace(plan, job=plan.job.model_copy(update={"recipe": recipe})), tmp_path / name)
        assert error is None
    alone, other = weights(tmp_path / "alone")["network"], weights(tmp_path / "other")["network"]
    assert all(torch.allclose(alone[name], other[name], rtol=0, atol=1e-13) for name in alone)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_trains(tmp_path: Path, precision: str) -> None:
    plan = hand_made_plan("plain")
    recipe = plan.job.recipe.model_copy(update={"precision": precision})
    outcome, error = train(replace(plan, job=plan.job.model_copy(update={"recipe": recipe})), tmp_path)
    assert error is None and (outcome.actual["accuracy"] or 0) > 0.7


def test_a_run_at_the_spot_price_has_an_actual_cost_beside_its_forecast(tmp_path: Path) -> None:
    plan = hand_made_plan("plain")
    cluster = plan.job.cluster.model_copy(update={"spot_price_per_node_hour": 3.6, "billing_seconds": 60})
    outcome, _ = train(replace(plan, job=plan.job.model_copy(update={"cluster": cluster})), tmp_path)
    total_s = outcome.actual["time_to_train_s"]
    assert total_s is not None
    assert outcome.actual["cost_usd"] == pytest.approx(math.ceil(total_s / 60) * 60 * 3.6 / 3600)


def test_a_target_ends_the_run_at_the_evaluation_that_reaches_it(tmp_path: Path) -> None:
    outcome, _ = train(hand_made_plan("with_target"), tmp_path)
    assert outcome.target_reached
    assert outcome.curve[-1].metric >= 0.75
    assert all(point.metric < 0.75 for point in outcome.curve[:-1])
    assert outcome.actual["epochs"] == len(outcome.curve) < 20


def test_skipped_steps_move_neither_the_count_nor_the_schedule(tmp_path: Path) -> None:
    """A schedule that goes on while the loss scaler skips steps ends its warm-up, or its rate, too early."""
    outcome, error = train(hand_made_plan("half_precision"), tmp_path)
    assert error is None
    progress = weights(tmp_path)["progress"]
    skipped = progress["skipped_samples"]
    assert skipped > 0 and skipped % 16 == 0
    assert outcome.actual["steps"] == progress["steps"] == 39 - skipped // 16
    last = outcome.curve[-1]
    before = 609 - 203 % 16 - skipped  # samples that counted before the last step
    assert last.learning_rate == pytest.approx(0.001 * (1 - before / 609))


def test_divergence_is_answered_with_a_lower_rate_said_aloud(tmp_path: Path) -> None:
    said: list[Event] = []
    outcome, error = train(hand_made_plan("diverging"), tmp_path, said=said)
    warnings = [event.message for event in said if event.level == "warning"]
    assert warnings and "learning rate lowered from 3e+04 to 1.5e+04" in warnings[0]
    assert outcome.learning_rate_reductions == len(warnings)
    assert isinstance(error, DivergedError) or outcome.learning_rate == 3e4 / 2 ** len(warnings)


def test_a_rate_that_no_reduction_saves_fails_with_the_cause(tmp_path: Path) -> None:
    outcome, error = train(hand_made_plan("hopeless"), tmp_path)
    assert isinstance(error, DivergedError)
    assert outcome.status == "FAILED"
    assert "Lower recipe.learning_rate" in (outcome.failure or "")


SCRIPT = """
import signal, sys
from pathlib import Path
from tula_core.errors import StoppedError
from tula_core.progress import silent
from tula_core.records import Plan, load, save
from tula_core.training.run import Attempt, run_attempt

def stop(number, frame):
    raise StoppedError("stopped", number)

signal.signal(signal.SIGTERM, stop)
folder = Path(sys.argv[1])
plan = load(Plan, folder / "plan.json")
attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=1, folder=folder, resume=False)
outcome, error = run_attempt(attempt, lambda event: print(event.message, flush=True), lambda samples, figures: None)
save(outcome, folder / "outcome.json")
"""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, number: signal.Signals, processes: int) -> None:
    plan = hand_made_plan("slow", processes=processes, local_batch=16 // processes)
    undisturbed, _ = train(plan, tmp_path / "undisturbed")
    folder = tmp_path / "killed"
    save(plan, folder / "plan.json")
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 4:"):
                process.send_signal(number)  # and read on: a reader that goes away is another failure
    if number == signal.SIGTERM:
        stopped = load(Outcome, folder / "outcome.json")
        assert stopped.status == "KILLED"
        assert 4 <= (stopped.actual["epochs"] or 0) < 12
    _wait_for_workers(folder / "attempt-1")
    assert attempt_seconds(folder / "attempt-1") > 0
    resumed, error = train(plan, folder, number=2, resume=True)
    assert error is None and resumed.status == "FINISHED"
    assert resumed.actual["steps"] == undisturbed.actual["steps"]
    assert [point.metric for point in resumed.curve] == [point.metric for point in undisturbed.curve]
    expected, got = weights(tmp_path / "undisturbed"), weights(folder)
    for name, tensor in expected["network"].items():
        assert torch.equal(tensor, got["network"][name]), name
    assert (resumed.actual["time_to_train_s"] or 0) > attempt_seconds(folder / "attempt-2")


def _wait_for_workers(task_folder: Path) -> None:
    """Workers of a killed parent write a last checkpoint by themselves; wait until the events stop."""
    events, last = task_folder / "events.jsonl", -1
    while events.stat().st_size != last:
        last = events.stat().st_size
        time.sleep(1.5)


def test_a_stop_signal_is_returned_like_any_error(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.message.startswith("epoch 2:"):
            raise StoppedError("told to stop", int(signal.SIGTERM))

    plan = hand_made_plan("slow")
    outcome, error = run_attempt(attempt(plan, tmp_path), interrupt, lambda samples, figures: None)
    assert isinstance(error, StoppedError)
    assert outcome.status == "KILLED"
    assert weights(tmp_path)["progress"]["samples"] >= 406


def test_a_row_in_another_precision_is_trained_in_it_and_recorded(tmp_path: Path) -> None:
    """The weights stay in fp32, but the arithmetic of sixteen bits leaves its mark."""
    plan = hand_made_plan("plain")
    candidate = replace(plan.table[0].candidate, options={"precision": "bf16"})
    other = replace(plan, table=(replace(plan.table[0], candidate=candidate),))
    (own, own_error), (changed, changed_error) = train(plan, tmp_path / "own"), train(other, tmp_path / "bf16")
    assert own_error is None and changed_error is None
    assert (own.precision, changed.precision) == (None, "bf16")
    assert own.curve[-1].train_loss != changed.curve[-1].train_loss
    assert own.curve[-1].train_loss == pytest.approx(changed.curve[-1].train_loss, rel=0.2)
    save(changed, tmp_path / "outcome.json")
    assert load(Outcome, tmp_path / "outcome.json") == changed
