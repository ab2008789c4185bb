"""Public reports of state on disk that a kill or a neighbour spoiled, P78, P80 and P81, and of space that stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import optuna
import pytest
from factories import make_job, make_profile
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from typer.testing import CliRunner

from tula_core.models.predictor import fit
from tula_core.search import make_plan
from tula_core.search.study import Task, search

pytestmark = pytest.mark.timeout(300)

WRITER = """
import os, signal, sys
from pathlib import Path
from factories import make_job, make_profile
from tula_core.models.predictor import fit
from tula_core.search import make_plan
from optuna.storages.journal import JournalFileBackend
left, real = int(sys.argv[2]), JournalFileBackend.append_logs

def append(self, logs):
    global left
    left -= 1
    if left == 0:
        with open(self._file_path, "ab") as journal:
            journal.write(b'{"op_code": 4, "wor')  # and in the middle of a line the power goes
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, logs)

JournalFileBackend.append_logs = append
profile, job = make_profile(), make_job()
make_plan(profile, job, fit(profile, job), mitigation=(), storage=Path(sys.argv[1]))
"""


def plan_into(journal: Path) -> list[str]:
    """Plan once and return what was said."""
    profile, job, said = make_profile(), make_job(), []
    make_plan(
        profile, job, fit(profile, job), mitigation=(), storage=journal, listener=lambda event: said.append(event)
    )
    return [event.message for event in said if event.level == "warning"]


def studies(journal: Path) -> list[optuna.study.StudySummary]:
    return optuna.get_all_study_summaries(JournalStorage(JournalFileBackend(str(journal))))


def trials(journal: Path) -> list[optuna.trial.FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(journal)))
    [name] = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


@pytest.mark.parametrize("writes", [1, 3])
def test_p78_a_search_that_was_killed_leaves_no_trial_running_and_no_lock(tmp_path: Path, writes: int) -> None:
    # Elsewhere: the killed trial stays RUNNING for ever, and the lock of the dead holds up whoever comes next.
    journal = tmp_path / "job.journal"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    killed = subprocess.run([sys.executable, "-c", WRITER, str(journal), str(writes)], env=environment, timeout=90)
    assert killed.returncode == -signal.SIGKILL
    assert plan_into(journal) == []
    assert {trial.state for trial in trials(journal)} <= {TrialState.COMPLETE, TrialState.FAIL}
    assert len(studies(journal)) == 1
    for line in journal.read_bytes().splitlines():
        json.loads(line)


def test_p80_several_processes_may_plan_one_job_at_once(tmp_path: Path) -> None:
    # Elsewhere: "database is locked", or the second writer dies because the study exists.
    journal = tmp_path / "job.journal"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        said = list(pool.map(plan_into, [journal] * 4, timeout=250))
    assert said == [[]] * 4
    assert len(studies(journal)) == 1


def test_p81_what_is_queued_is_tried_first_and_there_is_one_study(tmp_path: Path) -> None:
    # Elsewhere: a storage behind a tracking server skipped queued trials, or made the study twice.
    from search_fakes import FakePredictor, job, profile

    from tula_core.search.constraints import Limits, judge
    from tula_core.search.space import candidates, key

    asked, measured, predictor = job(cluster={"nodes": 4, "processes_per_node": 4}), profile(), FakePredictor()
    grid = candidates(measured, asked, predictor, ())
    limits = Limits(
        job=asked,
        hardware=measured.hardware,
        train_samples=60_000,
        expense="node_hours",
        higher_is_better=True,
        worst_accuracy=None,
        reach_probability=lambda candidate: None,
    )
    queued = [grid[7], grid[3]]
    task = Task(
        name="one",
        grid=grid,
        first=queued,
        evaluate=lambda chosen: [judge(row, limits) for row in predictor.forecast(chosen)],
        expense="node_hours",
        seed=0,
        small_grid=10,
        trials_beyond=50,
    )
    found = search(task)
    first = [trial.user_attrs["global_batch"] for trial in found.study.trials[:2]]
    assert first == [candidate.global_batch for candidate in queued]
    assert [key(item.row.candidate) for item in found.judged if item.row.candidate in queued]
    for _ in range(2):
        plan_into(tmp_path / "again.journal")
    assert len(studies(tmp_path / "again.journal")) == 1


@pytest.fixture
def full_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with 1 MB that is never freed and 1 MB that may be."""
    home = tmp_path / "full"
    for part in ("errors", "spool"):
        (home / part).mkdir(parents=True)
        (home / part / "one.txt").write_bytes(bytes(10**6))
    monkeypatch.setenv("TULA_HOME", str(home))
    return home


SIZES = [("500kB", False, True), ("500kB", True, True), ("1.5MB", True, False)]


@pytest.mark.parametrize(("size", "done", "missed"), SIZES)
def test_clean_says_when_it_cannot_reach_the_size(full_home: Path, size: str, done: bool, missed: bool) -> None:
    from flows.cli import app

    answer = CliRunner().invoke(app, ["clean", "--max-size", size, *(["--yes"] if done else [])])
    assert answer.exit_code == 0, answer.output
    assert (f"more than --max-size {size}" in answer.stderr) is missed
    assert (full_home / "spool" / "one.txt").exists()
