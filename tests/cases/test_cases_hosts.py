"""Reports of a run that stays under way for ever because its host came back under another name."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from train_helpers import hand_made_plan

from tula_core.errors import InputError
from tula_core.records import Plan
from tula_core.tracking import close_dead_runs, open_attempt
from tula_core.tracking.dead import SILENT_S, TAKE_OVER, attempt_path
from tula_core.training.folders import RunFolder, create_run, unfinished_run


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, RunFolder]:
    """A plan, and a run of it that a container left which has since been started again under another name."""
    monkeypatch.setenv("TULA_HOME", str(tmp_path))
    plan = hand_made_plan("plain")
    folder = create_run(plan, 0, "run-1")
    path = open_attempt(folder.path, plan, "run-1", 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "container-a"}))
    return plan, folder


def silent_for(folder: RunFolder, seconds: float) -> None:
    at_s = time.time() - seconds
    os.utime(attempt_path(folder.path, 1), (at_s, at_s))


def status(folder: RunFolder) -> Any:
    return json.loads(attempt_path(folder.path, 1).read_text())["status"]


def test_a_run_of_another_host_says_so_and_when_it_was_last_heard(left: tuple[Plan, RunFolder]) -> None:
    # Elsewhere: "under way in process 10620", a number of another machine, and no way on.
    plan, folder = left
    silent_for(folder, 120.0)
    with pytest.raises(InputError, match=r"on host 'container-a'.*2 minutes ago: wait until it ends"):
        unfinished_run(plan)
    silent_for(folder, SILENT_S + 300.0)
    with pytest.raises(InputError, match=f"15 minutes ago. If that host or container is gone, set {TAKE_OVER}=run-1"):
        unfinished_run(plan)
    assert close_dead_runs(send=False) == [] and status(folder) == "RUNNING"


@pytest.mark.parametrize(
    ("named", "silent_s", "closed"), [("run-1", 900.0, True), ("run-1", 60.0, False), ("run-2", 900.0, False)]
)
def test_only_a_silent_run_that_a_person_names_is_taken_over(
    left: tuple[Plan, RunFolder], monkeypatch: pytest.MonkeyPatch, named: str, silent_s: float, closed: bool
) -> None:
    plan, folder = left
    silent_for(folder, silent_s)
    monkeypatch.setenv(TAKE_OVER, named)
    assert close_dead_runs(send=False) == (["run-1"] if closed else [])
    assert status(folder) == ("KILLED" if closed else "RUNNING")
    if closed:
        assert unfinished_run(plan).job_id == "run-1"


def test_what_the_workers_wrote_is_a_sign_of_life(
    left: tuple[Plan, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = left
    silent_for(folder, 900.0)
    part = folder.path / "attempt-1" / "part-2"
    part.mkdir(parents=True)
    (part / "events.jsonl").write_text("")
    monkeypatch.setenv(TAKE_OVER, "run-1")
    assert close_dead_runs(send=False) == [] and status(folder) == "RUNNING"
