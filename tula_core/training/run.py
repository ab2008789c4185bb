"""Training a plan's row in worker processes, heard from the parent, into an `Outcome`."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import RunError, StoppedError
from tula_core.models.cost import cost_usd, hourly_price, node_hours
from tula_core.progress import Event, Listener
from tula_core.records import QUANTITIES, CurvePoint, Outcome, Plan, Row
from tula_core.records.candidate import UNKNOWN
from tula_core.tracking.spent import (
    attempt_folder,
    launched_from,
    part_folder,
    part_seconds,
    planned_layout,
    seconds_by_nodes,
)
from tula_core.training.drift import DriftAlarm, beside_steps_s
from tula_core.training.eta import Remaining
from tula_core.training.metering import energy_source, meters_fault, with_energy
from tula_core.training.relaunch import Joined, World, worlds_left, worlds_of

Status = Literal["FINISHED", "FAILED", "KILLED"]
PointHandler = Callable[[int, Mapping[str, float]], None]

_OF_A_STEP = ("step_time_s", "memory_bytes")
_LAYOUT = ("nodes", "processes_per_node", "local_batch", "accumulation")
ENTRY = "tula_core.training.worker:run_in_worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try at a logical run.

    Attributes
    ----------
    plan, row
        The plan and the chosen row of its table.
    job_id
        The logical run, kept by resume and retries.
    number
        1 for the first try.
    folder
        The logical run's folder: checkpoint, one subfolder per attempt, ``outcome.json``.
    resume
        Whether to go on from the checkpoint that is there.
    """

    plan: Plan
    row: Row
    job_id: str
    number: int
    folder: Path
    resume: bool

    @property
    def task_folder(self) -> Path:
        """Where this attempt's config, logs and events are."""
        return attempt_folder(self.folder, self.number)


@dataclass(slots=True)
class _Hearing:
    """What the workers have said so far."""

    attempt: Attempt
    listener: Listener
    on_point: PointHandler
    curve: list[dict[str, Any]] = field(default_factory=list)
    peak_learning_rate: float = 0.0
    reductions: int = 0
    samples: int = 0
    steps: int = 0
    remaining: Remaining = field(init=False)
    drift: DriftAlarm = field(init=False)
    seconds_left: float | None = None
    hardware: str | None = None  # where the workers are, None before they have begun
    steps_before: int = 0  # of the launch at hand
    relaunched: bool = False
    meters_doubted: bool = False

    def __post_init__(self) -> None:
        self.remaining = Remaining(self.total_samples, int(self.attempt.plan.facts["train_samples"]))
        # The mean step of a run in stages is forecast, not that of an epoch.
        steady = self.attempt.row.candidate.stages is None
        row = self.attempt.row
        self.drift = DriftAlarm(row["step_time_s"] if steady else UNKNOWN, beside_steps_s(row))

    def __call__(self, event: Mapping[str, Any]) -> None:
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event)

    @property
    def total_samples(self) -> int:
        return self.attempt.plan.job.recipe.epochs * int(self.attempt.plan.facts["train_samples"])

    @property
    def elsewhere(self) -> bool:
        """Whether the run is on other hardware than the plan's."""
        return self.hardware not in (None, str(self.attempt.plan.hardware["fingerprint"]))

    def _on_resumed(self, event: Mapping[str, Any]) -> None:
        self.curve = list(event["curve"])
        self.samples, self.steps, self.reductions = event["samples"], event["steps"], event["reductions"]
        self.steps_before = self.steps
        if self.relaunched:
            return
        self._say(f"resumed at {self.samples:,} of {self.total_samples:,} samples", level="info")

    def _on_ready(self, event: Mapping[str, Any]) -> None:
        recipe, batch = self.attempt.plan.job.recipe, self.attempt.row.candidate.global_batch
        self.peak_learning_rate = event["peak_learning_rate"]
        self.hardware = event.get("hardware")
        if self.relaunched:
            return
        if self.elsewhere:
            self._say(
                "this is other hardware than the plan's: what the run takes is recorded for this hardware, and nothing "
                "is learnt from it about the forecast of time and memory",
                level="info",
            )
        if event.get("limit_warning"):
            self._say(event["limit_warning"], level="warning")
        planned = self.attempt.plan.hardware.get("device", event["device"])
        if planned != event["device"]:
            self._say(
                f"the plan was measured on {planned}, this run is on {event['device']}: its forecasts of time, memory "
                "and cost do not hold here. Plan again on this machine.",
                level="warning",
            )
        rules = [name for name in self.attempt.row.candidate.mitigation if name.endswith("-lr")]
        rule = f"{rules[0].removesuffix('-lr')} rule, factor {event['factor']:.3g}" if rules else "not scaled"
        warm = event["warmup_samples"]
        self._say(
            f"global batch {batch}: learning rate {recipe.learning_rate:.4g} at batch {recipe.batch_size} -> "
            f"{self.peak_learning_rate:.4g} ({rule}{f', warm-up over {warm:,} samples' if warm else ''})",
            level="info",
        )

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        trained_s = (event["samples"] - self.samples) / max(event["images_per_s"], 1e-9)
        self.drift.add(trained_s, event["steps"] - self.steps)
        self.samples, self.steps = event["samples"], event["steps"]
        self.seconds_left = self.remaining.after(self.samples, event["images_per_s"])
        self._heed_meters(event)
        data = {name: event[name] for name in ("loss", "learning_rate", "images_per_s", "epoch")}
        if self.curve:
            data["metric"] = self.curve[-1]["metric"]
        self._say(
            f"epoch {event['epoch']:.2f}, loss {event['loss']:.4f}",
            fraction=min(1.0, self.samples / self.total_samples),
            data={**data, "seconds_left": self.seconds_left},
        )
        self.on_point(self.samples, {name: data[name] for name in ("loss", "learning_rate", "images_per_s")})

    def _heed_meters(self, event: Mapping[str, Any]) -> None:
        if not self.meters_doubted and (fault := meters_fault(event.get("energy"))) is not None:
            self.meters_doubted = True
            self._say(fault, level="warning")

    def _on_evaluation(self, event: Mapping[str, Any]) -> None:
        self.curve.append({name: event[name] for name in CurvePoint.__slots__})
        metric = str(self.attempt.plan.facts["metric"])
        self._say(
            f"epoch {event['epochs']:.0f}: {metric} {event['metric']:.4f}",
            fraction=min(1.0, self.samples / self.total_samples),
            data={"metric": event["metric"]},
        )
        self.on_point(event["samples"], {metric: event["metric"]})
        self.remaining.evaluated(event["seconds"])
        if (slow := self.drift.end_epoch(event["epochs"], self.seconds_left, event["seconds"])) is not None:
            self._say(slow, level="warning")

    def _on_evaluation_reduced(self, event: Mapping[str, Any]) -> None:
        self._say(
            f"an evaluation batch of {event['asked']} did not fit in memory: {event['batch']} is used from now on",
            level="warning",
        )

    def _on_stage(self, event: Mapping[str, Any]) -> None:
        batch = event["processes"] * event["local_batch"] * event["accumulation"]
        self._say(f"the global batch is {batch} from {event['samples']:,} samples on", level="info")

    def relaunch(self, world: World) -> None:
        """Say that the run goes on with other processes."""
        self.relaunched = True
        self._say(
            f"goes on after {self.samples:,} samples with {world.nodes} x {world.processes_per_node} processes",
            level="info",
        )

    def _on_diverged(self, event: Mapping[str, Any]) -> None:
        self.reductions += 1
        self.peak_learning_rate = event["new_learning_rate"]
        self.curve = [point for point in self.curve if point["samples"] <= event["back_to_samples"]]
        self._say(
            f"the loss became {event['loss']:.4g} after {event['samples']:,} samples: learning rate lowered from "
            f"{event['old_learning_rate']:.4g} to {event['new_learning_rate']:.4g}, training goes on from "
            f"{event['back_to_samples']:,} samples",
            level="warning",
        )

    def end(self) -> None:
        """Say that the training is done, and with what."""
        metric = str(self.attempt.plan.facts["metric"])
        last = f", {metric} {self.curve[-1]['metric']:.4f}" if self.curve else ""
        self._say(f"done after {self.samples:,} samples, {self.steps:,} steps{last}", fraction=1.0)

    def _say(self, message: str, **rest: Any) -> None:
        self.listener(Event(stage="train", message=message, **rest))


def run_attempt(attempt: Attempt, listener: Listener, on_point: PointHandler) -> tuple[Outcome, BaseException | None]:
    """Train and return the outcome of all attempts so far, with the error that ended this one, None if none did.

    ``on_point`` gets (training samples seen, figures) as they come. An interrupt or a stop signal is returned like any
    other error, after the workers have written a checkpoint.
    """
    hearing = _Hearing(attempt, listener, on_point)
    by_nodes = seconds_by_nodes(attempt.folder, attempt.number - 1, attempt.row.candidate.nodes)
    joined, spans_s = Joined(), list[float]()
    error: BaseException | None = None
    result: LaunchResult | None = None
    for world in _worlds(attempt):
        part = part_folder(attempt.task_folder, len(spans_s) + 1)
        if spans_s:
            hearing.relaunch(world)
        result, error = _launch(_task(attempt, world, part), hearing)
        spans_s.append(part_seconds(part) if result is None else result.seconds)
        by_nodes[world.nodes] = by_nodes.get(world.nodes, 0.0) + spans_s[-1]
        if error is not None or result is None or result.result is None:
            break
        joined.add(result.result, hearing.steps_before)
        if result.result.get("target_reached"):
            break
    if error is None:
        hearing.end()
    status: Status = "FINISHED" if error is None else _status(error, result)
    final = joined.final() if error is None else {}
    if attempt.resume and len(attempt.row.candidate.stages or ()) > 1:
        final = {**final, "step_time_s": None}  # of the later stages alone, which no row forecast
    return _outcome(hearing, status, error, final, by_nodes, spans_s[:-1]), error


def _worlds(attempt: Attempt) -> Sequence[World]:
    """Return the worlds that are left of a run."""
    worlds = worlds_of(attempt.row.candidate)
    return worlds_left(worlds, launched_from(attempt.folder, attempt.number - 1)) if attempt.resume else worlds


def _launch(task: WorkerTask, hearing: _Hearing) -> tuple[LaunchResult | None, BaseException | None]:
    """Return how the workers ended, None where they were stopped, and the error that ended them, if any."""
    try:
        result = launch(task, hearing)
        return result, None if result.failure is None else result.failure.to_error()
    except (KeyboardInterrupt, StoppedError) as stop:
        return None, stop
    except OSError as fault:  # the attempt has failed and is recorded as that, where anything can be written at all
        error = RunError(
            f"run folder: {str(hearing.attempt.folder)!r} cannot be written ({fault.strerror or fault}). "
            "Free disk space or set TULA_HOME to a larger disk, then go on with --resume."
        )
        error.__cause__ = fault
        return None, error


def _status(error: BaseException, result: LaunchResult | None) -> Status:
    killed = isinstance(error, (KeyboardInterrupt, StoppedError))
    killed = killed or (
        result is not None and result.failure is not None and result.failure.kind in ("killed", "stopped")
    )
    return "KILLED" if killed else "FAILED"


def _task(attempt: Attempt, world: World, folder: Path) -> WorkerTask:
    candidate = attempt.row.candidate
    return WorkerTask(
        entry=ENTRY,
        payload={
            "job": attempt.plan.job.in_precision(candidate.precision).to_dict(),
            **world.payload(),
            "planned": [getattr(candidate, name) for name in _LAYOUT],
            "global_batch": candidate.global_batch,
            "mitigation": list(candidate.mitigation),
            "checkpoint": str(attempt.folder / "checkpoint.pt"),
            "resume": attempt.resume or folder != attempt.task_folder,
            "train_samples": int(attempt.plan.facts["train_samples"]),
            "sample_shape": attempt.plan.facts.get("sample_shape"),
            "power_limit_w": candidate.power_limit_w,
        },
        folder=folder,
        nodes=world.nodes,
        processes_per_node=world.processes_per_node,
        threads=int(attempt.plan.hardware["threads_per_process"]),
    )


def _outcome(
    hearing: _Hearing,
    status: Status,
    error: BaseException | None,
    final: Mapping[str, Any],
    by_nodes: Mapping[int, float],
    spans_s: Sequence[float],
) -> Outcome:
    attempt, plan = hearing.attempt, hearing.attempt.plan
    candidate = attempt.row.candidate
    curve = tuple(CurvePoint(**point) for point in hearing.curve)
    # Of a run that went on at another row no row forecast the whole.
    known = _OF_A_STEP if _changed_layout(attempt) else QUANTITIES
    forecast = {name: attempt.row[name] if name in known else UNKNOWN for name in QUANTITIES}
    reached = bool(final.get("target_reached")) if status == "FINISHED" else False
    return Outcome(
        schema_version=Outcome.SCHEMA_VERSION,
        job_id=attempt.job_id,
        job_hash=plan.job.digest,
        job_name=plan.job.title,
        workload=str(plan.facts.get("workload", plan.job.title)),
        hardware=hearing.hardware or str(plan.hardware["fingerprint"]),
        predictor=plan.predictor,
        attempt=attempt.number,
        status=status,
        failure=None if error is None else (str(error) or type(error).__name__),
        nodes=candidate.nodes,
        processes_per_node=candidate.processes_per_node,
        local_batch=candidate.local_batch,
        accumulation=candidate.accumulation,
        mitigation=candidate.mitigation,
        precision=candidate.precision,
        learning_rate=final.get("learning_rate", hearing.peak_learning_rate),
        learning_rate_reductions=final.get("reductions", hearing.reductions),
        target_reached=None if plan.job.target is None else reached,
        predicted={name: interval.value for name, interval in forecast.items()},
        predicted_low={name: interval.low for name, interval in forecast.items()},
        predicted_high={name: interval.high for name, interval in forecast.items()},
        actual=with_energy(_actual(hearing, final, by_nodes), attempt, final, spans_s),
        curve=curve,
        run_folder=str(attempt.folder),
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        planned_hardware=str(plan.hardware["fingerprint"]) if hearing.elsewhere else None,
        energy_source=energy_source(final),
    )


def _changed_layout(attempt: Attempt) -> bool:
    folders = (attempt_folder(attempt.folder, number) for number in range(1, attempt.number + 1))
    return len({layout for folder in folders if (layout := planned_layout(folder)) is not None}) > 1


def _actual(hearing: _Hearing, final: Mapping[str, Any], by_nodes: Mapping[int, float]) -> dict[str, float | None]:
    plan = hearing.attempt.plan
    nodes, seconds = np.array(list(by_nodes)), np.array(list(by_nodes.values()))
    samples = final.get("samples", hearing.samples)
    metric = hearing.curve[-1]["metric"] if hearing.curve else None
    price = hourly_price(plan.job.cluster)
    return {
        "step_time_s": final.get("step_time_s"),
        "time_to_train_s": float(seconds.sum()),
        "node_hours": float(node_hours(nodes, seconds).sum()),
        "cost_usd": None
        if price is None
        else float(cost_usd(nodes, seconds, price, plan.job.cluster.billing_seconds).sum()),
        "energy_j": None,  # of `with_energy`
        "memory_bytes": final.get("memory_bytes"),
        "epochs": samples / int(plan.facts["train_samples"]),
        "steps": final.get("steps", hearing.steps),
        "accuracy": metric if metric is not None and math.isfinite(metric) else None,
    }
