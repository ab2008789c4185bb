from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from train_helpers import hand_made_plan

from tula_core.progress import Event, silent
from tula_core.records import Candidate, Outcome, Plan, Stage, save
from tula_core.tracking.spent import (
    attempt_folder,
    attempt_seconds,
    launched_from,
    part_folder,
    part_seconds,
    parts_of,
)
from tula_core.training.relaunch import Joined, worlds_left, worlds_of
from tula_core.training.run import Attempt, run_attempt
from tula_core.training.state import Progress
from tula_core.training.step_times import StepTimes, mean_of_run_s


def stage(from_samples: int, processes: int, local_batch: int, accumulation: int = 1, nodes: int = 1) -> Stage:
    return Stage(
        from_samples=from_samples,
        nodes=nodes,
        processes_per_node=processes,
        local_batch=local_batch,
        accumulation=accumulation,
    )


GROWN = (stage(0, 1, 8), stage(200, 1, 16), stage(406, 1, 16, 2))
WIDENED = (stage(0, 1, 8), stage(80, 1, 16), stage(304, 2, 16))  # of 203 samples in an epoch: within the second


def staged_plan(workload: str, stages: tuple[Stage, ...], **cluster: Any) -> Plan:
    last = stages[-1]
    plan = hand_made_plan(
        workload, processes=last.processes_per_node, local_batch=last.local_batch, accumulation=last.accumulation
    )
    candidate = dataclasses.replace(plan.table[0].candidate, mitigation=("growth",), nodes=last.nodes, stages=stages)
    job = plan.job.model_copy(update={"cluster": plan.job.cluster.model_copy(update=cluster)})
    return dataclasses.replace(plan, job=job, table=(dataclasses.replace(plan.table[0], candidate=candidate),))


def train(
    plan: Plan, folder: Path, number: int = 1, resume: bool = False, said: list[Event] | None = None
) -> tuple[Outcome, BaseException | None]:
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=number, folder=folder, resume=resume)
    return run_attempt(attempt, silent if said is None else said.append, lambda samples, figures: None)


def weights(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state


def test_one_world_goes_through_all_its_stages(tmp_path: Path) -> None:
    said: list[Event] = []
    outcome, error = train(staged_plan("plain", GROWN), tmp_path, said=said)
    assert error is None and outcome.status == "FINISHED"
    # 25 steps of 8 to the 200th sample and 3 left of the epoch; 13 of 16; 7 of 32.
    assert outcome.actual["steps"] == 25 + 1 + 13 + 7
    assert [point.samples for point in outcome.curve] == [203, 406, 609]
    assert [event.message for event in said if "global batch is" in event.message] == [
        "the global batch is 16 from 200 samples on",
        "the global batch is 32 from 406 samples on",
    ]
    assert outcome.stages == GROWN
    assert not part_folder(attempt_folder(tmp_path, 1), 2).exists()


def test_processes_are_started_anew_where_their_number_changes(tmp_path: Path) -> None:
    said: list[Event] = []
    plan = staged_plan("plain", WIDENED, price_per_node_hour=3.6, billing_seconds=1)
    outcome, error = train(plan, tmp_path, said=said)
    assert error is None and outcome.attempt == 1
    # 10 of 8; 8 of 16 to the epoch's end; 7 to the 315th sample, the first step's end beyond 304; then 3 and 7 of 32.
    assert outcome.actual["steps"] == 10 + 8 + 7 + 3 + 7
    assert [point.samples for point in outcome.curve] == [203, 406, 609]
    assert any("goes on after 315 samples with 1 x 2 processes" in event.message for event in said)
    assert outcome.stages == (*WIDENED[:2], stage(315, 2, 16))  # as they were, not as they were planned
    parts = [part_folder(attempt_folder(tmp_path, 1), number) for number in (1, 2)]
    configs = [json.loads((part / "config.json").read_text()) for part in parts]
    assert [config["processes_per_node"] for config in configs] == [1, 2]
    total_s, hours, cost = (outcome.actual[name] for name in ("time_to_train_s", "node_hours", "cost_usd"))
    assert total_s is not None and hours == pytest.approx(total_s / 3600)
    assert sum(part_seconds(part) for part in parts) == pytest.approx(total_s, rel=0.3, abs=3.0)
    # Each launch is rounded up to whole seconds by itself.
    assert cost is not None and math.ceil(total_s) <= cost / 3.6 * 3600 + 1e-6 <= total_s + 2
    assert outcome.predicted["time_to_train_s"] == 1.0 and (outcome.actual["step_time_s"] or 0) > 0


def test_nodes_are_counted_while_they_train(tmp_path: Path) -> None:
    plan = staged_plan("plain", (stage(0, 1, 16), stage(406, 1, 16, nodes=2)), price_per_node_hour=3600.0)
    outcome, error = train(plan, tmp_path)
    assert error is None
    first_s, second_s = (part_seconds(part_folder(attempt_folder(tmp_path, 1), number)) for number in (1, 2))
    hours, cost = outcome.actual["node_hours"], outcome.actual["cost_usd"]
    assert hours == pytest.approx((first_s + 2 * second_s) / 3600, rel=0.3, abs=6 / 3600)
    total_s = outcome.actual["time_to_train_s"]
    assert total_s is not None and hours is not None and cost is not None
    assert total_s / 3600 < hours < 2 * total_s / 3600
    assert hours * 3600 <= cost <= hours * 3600 + 3


SCRIPT = """
import sys
from pathlib import Path
from tula_core.progress import silent
from tula_core.records import Plan, load
from tula_core.training.run import Attempt, run_attempt

folder = Path(sys.argv[1])
plan = load(Plan, folder / "plan.json")
attempt = Attempt(plan=plan, row=plan.table[0], job_id="job", number=1, folder=folder, resume=False)
run_attempt(attempt, lambda event: print(event.message, flush=True), lambda samples, figures: None)
"""


@pytest.mark.parametrize("epoch", [2, 7])
def test_a_run_killed_in_either_world_resumes_to_the_same_weights(tmp_path: Path, epoch: int) -> None:
    plan = staged_plan("slow", (stage(0, 1, 16), stage(5 * 203 + 48, 2, 16)))
    undisturbed, _ = train(plan, tmp_path / "undisturbed")
    folder = tmp_path / "killed"
    save(plan, folder / "plan.json")
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"epoch {epoch}:"):
                process.send_signal(signal.SIGKILL)
    part = part_folder(attempt_folder(folder, 1), 1 if epoch < 5 else 2)
    wait_for_workers(part)
    assert launched_from(folder, 1) == (0 if epoch < 5 else 5 * 203 + 48)
    resumed, error = train(plan, folder, number=2, resume=True)
    assert error is None and resumed.status == "FINISHED"
    assert resumed.actual["steps"] == undisturbed.actual["steps"]
    assert resumed.stages == undisturbed.stages and len(resumed.stages) == 2
    assert [point.metric for point in resumed.curve] == [point.metric for point in undisturbed.curve]
    expected, got = weights(tmp_path / "undisturbed"), weights(folder)
    for name, tensor in expected["network"].items():
        assert torch.equal(tensor, got["network"][name]), name
    assert resumed.predicted["time_to_train_s"] == 1.0
    begun, *others = [told(part) for part in parts_of(attempt_folder(folder, 2))]
    assert begun["timed_steps"] == begun["steps"] > 0 and len(others) == (epoch < 5)
    launches = [(begun["timed_steps"], begun["timed_s"] / begun["timed_steps"])]
    launches += [(part["end"]["steps"] - part["steps"], part["end"]["step_time_s"]) for part in (begun, *others)]
    assert sum(steps for steps, _ in launches) == resumed.actual["steps"] == undisturbed.actual["steps"]
    mean_s = sum(steps * seconds for steps, seconds in launches) / sum(steps for steps, _ in launches)
    assert resumed.actual["step_time_s"] == pytest.approx(mean_s)
    spent_s = attempt_seconds(attempt_folder(folder, 1)) + attempt_seconds(attempt_folder(folder, 2))
    assert resumed.actual["time_to_train_s"] == pytest.approx(spent_s, rel=0.3, abs=3.0)


def told(part: Path) -> dict[str, Any]:
    """Return where a launch took up the run, and as ``end`` what its workers gave back."""
    events = [json.loads(line) for line in (part / "events.jsonl").read_text().splitlines()]
    taken_up: dict[str, Any] = next(event for event in events if event["kind"] == "resumed")
    return {**taken_up, "end": json.loads((part / "result.json").read_text())}


def wait_for_workers(task_folder: Path) -> None:
    """Workers of a killed parent write a last checkpoint by themselves; wait until the events stop."""
    events, last = task_folder / "events.jsonl", -1
    while events.stat().st_size != last:
        last = events.stat().st_size
        time.sleep(1.5)


def test_worlds_are_split_where_nodes_or_processes_change() -> None:
    candidate = Candidate(nodes=1, processes_per_node=2, local_batch=16, stages=WIDENED)
    first, second = worlds_of(candidate)
    assert (first.stages, first.until_samples) == (WIDENED[:2], 304)
    assert (second.stages, second.until_samples, second.processes_per_node) == (WIDENED[2:], None, 2)
    assert first.payload()["local_batch"] == 16 and second.payload()["until_samples"] is None
    assert [list(worlds_left((first, second), at)) for at in (0, 303, 304)] == [
        [first, second],
        [first, second],
        [second],
    ]
    (alone,) = worlds_of(Candidate(nodes=2, processes_per_node=2, local_batch=8, accumulation=3))
    assert alone.until_samples is None and alone.payload()["accumulation"] == 3


def test_the_mean_step_is_over_the_steps_of_all_worlds() -> None:
    joined = Joined()
    joined.add({"steps": 30, "step_time_s": 1.0, "memory_bytes": 5}, 0)
    joined.add({"steps": 40, "step_time_s": 3.0, "memory_bytes": 4}, 30)
    assert joined.final() == {"steps": 40, "step_time_s": 1.5, "memory_bytes": 5}
    assert Joined().final() == {}


def launched(run: Progress, row: str, steps: int, seconds: float) -> dict[str, Any]:
    """Return a run after a launch that took steps of some seconds each."""
    times = StepTimes(row=row)
    times.begin(run)
    for _ in range(steps):
        run.steps += 1
        times.add(seconds)
    times.note(run)
    return dataclasses.asdict(run)


def test_the_mean_step_of_a_resumed_run_is_over_the_steps_of_all_launches() -> None:
    run = Progress()
    assert mean_of_run_s(launched(run, "row 3", 30, 1.0)) == pytest.approx(1.0)
    assert mean_of_run_s(launched(run, "row 3", 10, 3.0)) == pytest.approx(1.5)
    assert mean_of_run_s(launched(run, "row 3", 0, 0.0)) == pytest.approx(1.5)  # stopped before its first step


def test_steps_of_another_row_or_an_older_checkpoint_leave_the_mean_step_unknown() -> None:
    run = Progress()
    launched(run, "row 3", 30, 1.0)
    assert mean_of_run_s(launched(run, "row 4", 10, 3.0)) is None
    assert mean_of_run_s(launched(run, "row 3", 10, 1.0)) is None
    assert mean_of_run_s(launched(Progress(steps=5), "row 3", 10, 1.0)) is None
