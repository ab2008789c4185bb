"""A core that answers at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flows_samples as samples

from tula_core.progress import Event


class FakeCore:
    """Stands in for `tula_core.api`; remembers the calls, and raises what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.train_errors: list[BaseException] = []
        self.profile_errors: list[BaseException] = []
        self.the_plan = samples.plan()
        self.on_record = [samples.outcome(), samples.outcome(job_id="run-2", status="KILLED")]

    def profile(self, job: Any, *, reprofile: bool = False, listener: Callable[[Event], None]) -> tuple[Any, ...]:
        self.calls.append(("profile", {"job": job, "reprofile": reprofile}))
        if self.profile_errors:
            raise self.profile_errors.pop(0)
        listener(Event(stage="profile", message="2 of 4 measured", fraction=0.5))
        return job, samples.profile(), False

    def plan(self, job: Any, *, profile: Any = None, reprofile: bool = False, listener: Any) -> Any:
        self.calls.append(("plan", {"job": job, "profile": profile, "reprofile": reprofile}))
        listener(Event(stage="search", message="4 candidates", fraction=1.0))
        return self.the_plan

    def train(self, plan: Any, *, row: Any = None, resume: bool = False, job_id: Any = None, listener: Any) -> Any:
        self.calls.append(("train", {"plan": plan, "row": row, "resume": resume, "job_id": job_id}))
        if self.train_errors:
            raise self.train_errors.pop(0)
        figures = {"loss": 0.25, "images_per_s": 1234.0, "seconds_left": 12.0, "metric": 0.93}
        listener(Event(stage="train", message="epoch 1", fraction=0.5, data=figures))
        listener(Event(stage="train", message="learning rate lowered", level="warning"))
        return samples.outcome(job_id=job_id or "run-1")

    def resume_plan(self, job: Any) -> tuple[Any, str]:
        return self.the_plan, "run-before"

    def outcomes(self) -> list[Any]:
        return self.on_record

    def retrain(self, *, listener: Any) -> Any:
        return SimpleNamespace(
            promoted=False,
            reason="not promoted: one job is not enough to check on jobs left out",
            champion_error={"step_time_s": 0.1},
            challenger_error={"step_time_s": 0.05},
            champion_method_error={},
            challenger_method_error={},
            challenger=None,
            replaced={},
        )

    def named(self, name: str) -> list[dict[str, Any]]:
        return [arguments for called, arguments in self.calls if called == name]
