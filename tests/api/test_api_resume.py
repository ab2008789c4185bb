"""Going on with a run at another row of its plan."""

import json
from pathlib import Path
from typing import Any

import pytest
from case_helpers import case_plan

from tula_core import api
from tula_core.errors import InputError
from tula_core.training.folders import create_run
from tula_core.training.run import Attempt


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Attempt]:
    """The attempts that would be trained."""
    begun: list[Attempt] = []

    def train(attempt: Attempt, listener: Any) -> tuple[Any, None]:
        begun.append(attempt)
        return None, None

    monkeypatch.setattr(api, "_attempt", train)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return begun


@pytest.mark.parametrize(("asked", "trained"), [(None, 0), (0, 0), (1, 1)])
def test_a_resumed_run_goes_on_at_the_row_that_is_asked_for(
    attempts: list[Attempt], asked: int | None, trained: int
) -> None:
    """A row given beside --resume must not be ignored in silence."""
    plan = case_plan("plain", (2, 16, 1), (1, 32, 1))
    folder = create_run(plan, 0)
    (folder.path / "checkpoint.pt").touch()
    api.train(plan, row=asked, resume=True)
    [attempt] = attempts
    assert attempt.row == plan.table[trained] and attempt.resume and attempt.job_id == folder.job_id
    assert folder.row_number == trained
    assert set(json.loads((folder.path / "run.json").read_text())) == {"row", "plan_digest"}
    api.train(plan, resume=True)  # and stays there
    assert attempts[-1].row == plan.table[trained]


def test_a_row_that_is_not_there_leaves_the_run_as_it_was(attempts: list[Attempt]) -> None:
    plan = case_plan("plain", (2, 16, 1))
    folder = create_run(plan, 0)
    with pytest.raises(InputError, match="row 7 does not exist"):
        api.train(plan, row=7, resume=True)
    assert folder.row_number == 0 and attempts == []
