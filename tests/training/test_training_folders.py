import json
import os
from pathlib import Path

import pytest
from train_helpers import hand_made_plan

from tula_core.errors import InputError
from tula_core.tracking import close_attempt, open_attempt
from tula_core.training.folders import create_run, unfinished_run, unfinished_run_of_job


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["run.json", "plan.json"])
@pytest.mark.parametrize("content", ["garbage", "{}", "[]"])
def test_a_damaged_run_does_not_keep_another_from_being_resumed(name: str, content: str) -> None:
    plan = hand_made_plan("plain")
    wanted = create_run(plan, 0)
    damaged = create_run(plan, 0)
    os.utime(wanted.path / "run.json", (1000, 1000))
    (damaged.path / name).write_text(content)
    assert unfinished_run_of_job(plan.job).job_id == wanted.job_id
    if name == "run.json":
        assert unfinished_run(plan).job_id == wanted.job_id


def test_a_run_that_is_under_way_is_not_resumed_beside_itself() -> None:
    plan = hand_made_plan("plain")
    folder = create_run(plan, 0)
    record = open_attempt(folder.path, plan, folder.job_id, 1, plan.table[0])
    for search in (lambda: unfinished_run(plan), lambda: unfinished_run_of_job(plan.job)):
        with pytest.raises(InputError, match=f"is under way in process {os.getpid()}"):
            search()
    record.write_text(json.dumps({"schema_version": 1, "status": "RUNNING"}))  # damaged: says nothing
    assert unfinished_run(plan).job_id == folder.job_id
    open_attempt(folder.path, plan, folder.job_id, 1, plan.table[0])
    close_attempt(folder.path, 1, "KILLED")
    assert unfinished_run(plan).job_id == folder.job_id
