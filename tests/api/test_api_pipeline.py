"""The chain as a user has it: real workers, a real MLflow store on disk, a tiny network."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tula_core as tula
from tula_core.errors import InfeasibleError, InputError
from tula_core.progress import Event
from tula_core.records import QUANTITIES, Outcome, Plan, Profile, load, save

ROOT = Path(__file__).resolve().parents[2]


def job(name: str = "plain", **fields: Any) -> tula.Job:
    given = {"cluster": {"processes_per_node": 1}, "probe": {"seconds": 20}} | fields
    return tula.Job(name=f"tiny-{name}", workload=f"tiny_workloads:{name}", **given)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tula.Job]]:
    """One profile of the tiny workload, measured once for all tests of this file."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TULA_HOME", str(folder / "home"))
        patch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
        resolved, profile, cached = tula.profile(job())
    assert not cached
    save(profile, folder / "profile.json")
    yield folder / "profile.json", resolved


def client() -> Any:
    import mlflow

    from tula_core import tracking

    return mlflow.MlflowClient(tracking.tracking_uri())


def parent_run(job_name: str, job_id: str) -> Any:
    found = client().search_runs(
        [client().get_experiment_by_name(job_name).experiment_id], f"tags.`tula.job_id` = '{job_id}'"
    )
    assert len(found) == 1, "one logical run is one parent run"
    return found[0]


def test_a_profile_makes_the_same_plan_each_time_and_in_a_fresh_process(measured: tuple[Path, tula.Job]) -> None:
    profile = load(Profile, measured[0])
    first, second = tula.plan(job(), profile=profile), tula.plan(job(), profile=profile)
    assert first.to_json() == second.to_json()
    code = (
        "import sys, tula_core as tula\n"
        "from tula_core.records import Profile, load\n"
        "job = tula.Job(name='tiny-plain', workload='tiny_workloads:plain', probe={'seconds': 20},"
        " cluster={'processes_per_node': 1})\n"
        "sys.stdout.write(tula.plan(job, profile=load(Profile, sys.argv[1])).to_json())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    command = [sys.executable, "-c", code, str(measured[0])]
    fresh = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert fresh.stdout == first.to_json()


def test_a_profile_of_another_workload_is_refused(measured: tuple[Path, tula.Job]) -> None:
    with pytest.raises(InputError, match="workload"):
        tula.plan(job("with_target"), profile=load(Profile, measured[0]))


def test_every_row_is_finite_or_unknown_and_keeps_the_batch_identity(measured: tuple[Path, tula.Job]) -> None:
    plan = tula.plan(job(), profile=load(Profile, measured[0]))
    assert plan.choice is not None
    for row in plan.to_dict()["table"]:
        assert row["global_batch"] == (
            row["nodes"] * row["processes_per_node"] * row["local_batch"] * row["accumulation"]
        )
        for name in QUANTITIES:
            low, value, high = (row[f"{name}_low"], row[name], row[f"{name}_high"])
            assert (low, value, high) == (None, None, None) or low <= value <= high
    assert any(row["nodes"] * row["processes_per_node"] == 1 for row in plan.to_dict()["table"])


def test_training_records_prediction_and_outcome_side_by_side(measured: tuple[Path, tula.Job]) -> None:
    plan = tula.plan(job(), profile=load(Profile, measured[0]))
    heard: list[Event] = []
    outcome = tula.train(plan, listener=heard.append)
    assert outcome.status == "FINISHED" and outcome.attempt == 1
    run = parent_run("tiny-plain", outcome.job_id)
    assert run.info.status == "FINISHED"
    for name in ("step_time_s", "time_to_train_s", "epochs", "accuracy", "memory_bytes"):
        assert run.data.metrics[f"actual/{name}"] == pytest.approx(outcome.actual[name])
        assert run.data.metrics[f"predicted/{name}"] == pytest.approx(outcome.predicted[name])
        assert run.data.metrics[f"error_pct/{name}"] == pytest.approx(outcome.error_pct(name))
    assert run.data.tags["tula.predictor"] == plan.predictor == "tula-predictor v1 (built-in)"
    assert any("learning rate 0.1 at batch 16" in event.message for event in heard)
    assert [past.job_id for past in tula.outcomes()] == [outcome.job_id]


def test_a_chosen_row_is_trained_and_a_wrong_one_refused(measured: tuple[Path, tula.Job]) -> None:
    plan = tula.plan(job(), profile=load(Profile, measured[0]))
    with pytest.raises(InputError, match="row 999 does not exist"):
        tula.train(plan, row=999)
    with pytest.raises(InputError, match="no unfinished run"):
        tula.train(plan, resume=True)


def test_nothing_feasible_leaves_a_plan_without_a_choice(measured: tuple[Path, tula.Job]) -> None:
    tight = job(constraints={"deadline": 0.5})
    plan = tula.plan(tight, profile=load(Profile, measured[0]))
    assert plan.choice is None
    assert "deadline" in plan.reason
    with pytest.raises(InfeasibleError, match="deadline"):
        tula.train(plan)


def test_a_run_that_fails_is_recorded_as_failed(measured: tuple[Path, tula.Job]) -> None:
    plan = tula.plan(job(), profile=load(Profile, measured[0]))
    broken = Plan.from_dict(plan.to_dict() | {"job": plan.job.to_dict() | {"workload": "tiny_workloads:hopeless"}})
    broken = Plan.from_dict(
        broken.to_dict()
        | {"job": broken.job.to_dict() | {"recipe": broken.job.to_dict()["recipe"] | {"learning_rate": 1e30}}}
    )
    with pytest.raises(tula.RunError, match="Lower recipe.learning_rate"):
        tula.train(broken)
    [outcome] = tula.outcomes()
    assert outcome.status == "FAILED"
    assert parent_run("tiny-plain", outcome.job_id).info.status == "FAILED"


SLOW_RUN = """
import signal, sys
import tula_core as tula
from tula_core.errors import StoppedError
from tula_core.records import Plan, load

def stop(number, frame):
    raise StoppedError("stopped", number)

signal.signal(signal.SIGTERM, stop)
tula.train(load(Plan, sys.argv[1]), listener=lambda event: print(event.message, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_is_shown_as_killed_and_resumes_as_the_same_run(tmp_path: Path, number: signal.Signals) -> None:
    from train_helpers import hand_made_plan

    plan = hand_made_plan("slow")
    save(plan, tmp_path / "plan.json")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    command = [sys.executable, "-c", SLOW_RUN, str(tmp_path / "plan.json")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("epoch 3:"):
                run.send_signal(number)
    runs = list((Path(os.environ["TULA_HOME"]) / "runs").iterdir())
    assert len(runs) == 1
    if number == signal.SIGKILL:
        from tula_core import tracking

        assert tracking.close_dead_runs() == [runs[0].name]
    killed = parent_run(plan.job.title, runs[0].name)
    assert killed.info.status == "KILLED"
    assert killed.data.metrics["actual/time_to_train_s"] > 0
    outcome: Outcome = tula.train(plan, resume=True)
    assert (outcome.status, outcome.attempt, outcome.job_id) == ("FINISHED", 2, runs[0].name)
    finished = parent_run(plan.job.title, runs[0].name)
    assert finished.info.status == "FINISHED"
    assert finished.data.metrics["actual/time_to_train_s"] == pytest.approx(outcome.actual["time_to_train_s"])
    assert len(tula.outcomes()) == 1


def test_a_plan_of_another_machine_is_said_to_be_one() -> None:
    from dataclasses import replace

    from train_helpers import hand_made_plan

    from tula_core.engine.hardware import available_cores, processor_name

    said: list[Event] = []
    plan = hand_made_plan("plain")
    here = {**plan.hardware, "device": "cpu", "device_name": processor_name(), "cores": available_cores()}
    tula.train(replace(plan, hardware=here), listener=said.append)
    assert not [event for event in said if event.level == "warning"]
    tula.train(replace(plan, hardware={**here, "device_name": "Abacus", "cores": 5}), listener=said.append)
    (warning,) = [event.message for event in said if event.level == "warning"]
    assert warning.startswith("the plan was measured on Abacus with 5 cores")
