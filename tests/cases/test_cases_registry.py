"""Reports of a registry with versions that hold nothing, after a lost answer or the death of a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tula_core.errors import RunError
from tula_core.records import Correction, Corrections
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import keys, promote, register_challenger, registry, store, sync_champion

LEARNT = Corrections(
    schema_version=1,
    version=99,
    outcomes=6,
    jobs=2,
    by_quantity={"step_time_s": Correction(log_bias=0.2, log_sd=0.05, outcomes=6)},
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TULA_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def lose_answers(monkeypatch: pytest.MonkeyPatch, method: str, losses: int = 1, *, carried_out: bool = True) -> None:
    """Let the first calls of a method of the client fail, after the server has done what they ask for."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    real, calls = getattr(MlflowClient, method), []

    def call(client: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(method)
        if len(calls) > losses:
            return real(client, *arguments, **named)
        if carried_out:
            real(client, *arguments, **named)
        raise MlflowException("API request to the server failed: the line went dead")

    monkeypatch.setattr(MlflowClient, method, call)


def statuses() -> list[str]:
    client = store.client()
    experiment = client.get_experiment_by_name(keys.PREDICTOR_NAME)
    return [run.info.status for run in client.search_runs([experiment.experiment_id])]


def versions() -> list[int]:
    found = store.client().search_model_versions(f"name = '{keys.PREDICTOR_NAME}'")
    return sorted(int(version.version) for version in found)


LOST = (
    "create_run",
    "create_model_version",
    "log_text",
    "set_terminated",
    "update_model_version",
    "set_registered_model_alias",
)


@pytest.mark.parametrize("method", LOST)
def test_a_registration_whose_answer_is_lost_is_whole(home: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    # Elsewhere: version 1 stays without its file for ever, its run goes on for ever, and it cannot be promoted.
    with monkeypatch.context() as patch:
        lose_answers(patch, method)
        assert register_challenger(LEARNT, {"a": 1.0}) == 2
    assert versions() == [1, 2] and statuses() == ["FINISHED", "FINISHED"]
    assert promote(1) == BUILTIN == sync_champion()
    assert promote(2).by_quantity == LEARNT.by_quantity


def test_a_first_version_without_its_file_is_completed_by_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        lose_answers(patch, "log_text", losses=2, carried_out=False)
        with pytest.raises(RunError):
            register_challenger(LEARNT, {"a": 1.0})
    assert versions() == [1] and statuses() == ["RUNNING"]
    assert register_challenger(LEARNT, {"a": 1.0}) == 2
    assert versions() == [1, 2] and statuses() == ["FINISHED", "FINISHED"]
    assert promote(1) == BUILTIN


def test_the_run_of_a_registration_that_died_is_closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_challenger(LEARNT, {"a": 1.0})
    with monkeypatch.context() as patch:
        lose_answers(patch, "create_model_version", losses=9, carried_out=False)
        with pytest.raises(RunError):
            register_challenger(LEARNT, {"a": 1.0})
    assert register_challenger(LEARNT, {"a": 1.0}) == 3
    assert sorted(statuses()) == ["FINISHED", "FINISHED", "FINISHED", "RUNNING"]
    monkeypatch.setattr(registry, "_DEAD_S", -10.0)
    assert register_challenger(LEARNT, {"a": 1.0}) == 4
    assert sorted(statuses()) == ["FINISHED"] * 4 + ["KILLED"]
