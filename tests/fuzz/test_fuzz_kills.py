"""A real training run that is ended at a random moment goes on to the weights of one that was left alone."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from families import rank
from fault_plans import plan_for
from fuzz_limits import examples, tried
from hypothesis import given
from hypothesis import strategies as st

from tula_core import api
from tula_core.errors import RunError, StoppedError, TulaError
from tula_core.progress import Event
from tula_core.records import Outcome
from tula_core.training.folders import RunFolder

pytestmark = pytest.mark.timeout(900)

EPOCHS = 4.0
MOST_EVENTS = 30  # of a run that is left alone: the machine, the first twenty steps, the epochs


class Killer:
    """Sends a signal to one worker when the n-th event is heard."""

    def __init__(self, moment: int, rank: int, number: signal.Signals) -> None:
        self.moment, self.rank, self.number = moment, rank, number
        self.heard = 0

    def __call__(self, event: Event) -> None:
        self.heard += event.stage == "train"
        if self.heard == self.moment:
            for worker in psutil.Process().children():
                if rank(worker) == self.rank:
                    worker.send_signal(self.number)


def final_weights(outcome: Outcome) -> dict[str, Any]:
    kept: dict[str, Any] = torch.load(Path(outcome.run_folder) / "checkpoint.pt", weights_only=False)
    return {name: value for name, value in kept["network"].items()}


@pytest.fixture
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording is not what is tried here: everything waits in the spool."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


def test_a_run_killed_at_a_random_moment_ends_as_if_nothing_had_been(untracked: None) -> None:
    plan = plan_for("short_steps", processes=2, local_batch=8)
    whole = api.train(plan, job_id="whole")
    expected = final_weights(whole)
    numbers = itertools.count()  # an example may be tried again, and is then another run
    moments = st.tuples(
        st.integers(1, MOST_EVENTS), st.integers(0, 1), st.sampled_from([signal.SIGKILL, signal.SIGTERM])
    )

    @given(moments)
    @examples(3)
    def ends_the_same(drawn: tuple[int, int, signal.Signals]) -> None:
        with tried("runs: killed at a random moment", seconds=240):
            check(plan, f"killed-{next(numbers)}", Killer(*drawn), expected)

    ends_the_same()


def check(plan: Any, job_id: str, killer: Killer, expected: dict[str, Any]) -> None:
    try:
        outcome = api.train(plan, job_id=job_id, listener=killer)
    except (RunError, StoppedError) as error:
        folder = RunFolder(path=Path(os.environ["TULA_HOME"]) / "runs" / job_id)
        assert folder.outcome is not None, f"nothing was recorded of {error}"
        assert folder.outcome.status == "KILLED"
        outcome = api.train(plan, job_id=job_id, resume=True)
        assert outcome.attempt == 2
    assert (outcome.status, outcome.actual["epochs"]) == ("FINISHED", EPOCHS)
    assert [point.epochs for point in outcome.curve] == [1.0, 2.0, 3.0, 4.0]
    for name, value in final_weights(outcome).items():
        assert torch.equal(value, expected[name]), name


def test_every_end_of_a_run_is_an_error_of_tulas_own() -> None:
    assert issubclass(RunError, TulaError) and issubclass(StoppedError, TulaError)
