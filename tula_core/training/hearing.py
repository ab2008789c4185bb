"""`Hearing`: what the workers of an attempt say, taken into figures and told on to whoever listens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tula_core.progress import Event, Listener
from tula_core.records import CurvePoint, MethodChange, Row, Stage
from tula_core.records.candidate import UNKNOWN
from tula_core.training.attempt import Attempt
from tula_core.training.drift import DriftAlarm, beside_steps_s
from tula_core.training.eta import Remaining
from tula_core.training.fallback.words import cause_words, change_words, effect_words
from tula_core.training.metering import meters_fault
from tula_core.training.rate import rate_words
from tula_core.training.relaunch import World, worlds_left, worlds_of

PointHandler = Callable[[int, Mapping[str, float]], None]


@dataclass(slots=True)
class Hearing:
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
    changed: bool = False  # the methods, and their workers are not yet ready
    launched_at_s: float | None = None
    stages: list[dict[str, int]] = field(default_factory=list)
    row: Row = field(init=False)  # in force
    returns: int = 0  # how often the run went back to earlier samples
    reached: dict[str, int] = field(default_factory=dict)  # samples of each figure's latest point

    def __post_init__(self) -> None:
        self.take(self.attempt.row, 0)

    def take(self, row: Row, from_samples: int) -> None:
        """Hear a row from now on, which trains from some samples on."""
        self.row = row
        takeovers = [world.until_samples for world in worlds_left(worlds_of(row.candidate), from_samples)]
        self.remaining = Remaining(
            self.total_samples,
            int(self.attempt.plan.facts["train_samples"]),
            [samples for samples in takeovers if samples is not None],
        )
        # The mean step of a run in stages is forecast, not that of an epoch.
        steady = row.candidate.stages is None
        self.drift = DriftAlarm(row["step_time_s"] if steady else UNKNOWN, beside_steps_s(row))

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take an event of the workers."""
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event)

    @property
    def total_samples(self) -> int:
        """Training samples of the whole run."""
        return self.attempt.plan.job.recipe.epochs * int(self.attempt.plan.facts["train_samples"])

    @property
    def elsewhere(self) -> bool:
        """Whether the run is on other hardware than the plan's."""
        return self.hardware not in (None, str(self.attempt.plan.hardware["fingerprint"]))

    def _on_resumed(self, event: Mapping[str, Any]) -> None:
        self.curve = list(event["curve"])
        self.samples, self.steps, self.reductions = event["samples"], event["steps"], event["reductions"]
        self.steps_before = self.steps
        self.stages = list(event.get("stages", ()))
        if self.relaunched:
            return
        self._say(f"resumed at {self.samples:,} of {self.total_samples:,} samples", level="info")

    def _on_ready(self, event: Mapping[str, Any]) -> None:
        self.peak_learning_rate = event["peak_learning_rate"]
        self.hardware = event.get("hardware")
        if self.launched_at_s is not None and "at_s" in event:
            self.remaining.started(max(0.0, event["at_s"] - self.launched_at_s))
        if self.relaunched:
            if self.changed:
                self._say_rate(event)
            self.changed = False
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
        self._say_rate(event)

    def _say_rate(self, event: Mapping[str, Any]) -> None:
        words = rate_words(event["rate"], self.attempt.plan.job.recipe, self.row.candidate.global_batch)
        self._say(words, level="info")

    def _on_other_data(self, event: Mapping[str, Any]) -> None:
        if not self.relaunched:
            self._say(event["message"], level="warning")

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        self.peak_learning_rate = event.get("peak_learning_rate", self.peak_learning_rate)
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
        self._point(self.samples, {name: data[name] for name in ("loss", "learning_rate", "images_per_s")})

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
        self._point(event["samples"], {metric: event["metric"]})
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

    def _on_layout(self, event: Mapping[str, Any]) -> None:
        stage = {name: int(event[name]) for name in Stage.__slots__}
        self.stages = [kept for kept in self.stages if kept["from_samples"] < stage["from_samples"]] + [stage]

    def _on_fell(self, event: Mapping[str, Any]) -> None:
        metric = str(self.attempt.plan.facts["metric"])
        kept = "the job names its methods" if self.attempt.plan.job.mitigation != "auto" else "there is no other to try"
        self._say(
            f"below the forecast: {cause_words(event, metric)}. Training goes on as it is: {kept}", level="warning"
        )

    def change(self, row: Row, change: MethodChange, spent: tuple[float, float]) -> None:
        """Say that other methods take over, and hear them from now on.

        Parameters
        ----------
        spent
            Seconds and node-hours of the run so far.
        """
        effect = effect_words(self.attempt.plan, self.attempt.row, row, change.samples, spent)
        self._say(change_words(change, effect), level="warning")
        self.curve = [point for point in self.curve if point["samples"] <= change.samples]
        self.samples, self.reductions, self.changed = change.samples, 0, True
        self.returns += 1
        self.take(row, change.samples)

    def launched(self) -> None:
        """Note that processes are started now."""
        self.launched_at_s = time.time()

    def relaunch(self, world: World) -> None:
        """Say that the run goes on with other processes."""
        self.relaunched = True
        self._say(
            f"goes on after {self.samples:,} samples with {world.nodes} x {world.processes_per_node} processes",
            level="info",
        )

    def _on_diverged(self, event: Mapping[str, Any]) -> None:
        self.reductions += 1
        self.returns += 1
        self.peak_learning_rate = event["new_learning_rate"]
        self.curve = [point for point in self.curve if point["samples"] <= event["back_to_samples"]]
        self._say(
            f"the loss became {event['loss']:.4g} after {event['samples']:,} samples: learning rate lowered from "
            f"{event['old_learning_rate']:.4g} to {event['new_learning_rate']:.4g}, training goes on from "
            f"{event['back_to_samples']:,} samples",
            level="warning",
        )

    def _point(self, samples: int, figures: Mapping[str, float]) -> None:
        """Hand figures on, none twice at the same samples: what is trained again has a name of its own.

        A figure goes on under its plain name where the run first comes further than it was.
        """
        named = {
            name if samples > self.reached.get(name, -1) else f"{name}.again_{self.returns}": value
            for name, value in figures.items()
        }
        self.reached |= {name: samples for name in named}
        self.on_point(samples, named)

    def end(self) -> None:
        """Say that the training is done, and with what."""
        metric = str(self.attempt.plan.facts["metric"])
        last = f", {metric} {self.curve[-1]['metric']:.4f}" if self.curve else ""
        self._say(f"done after {self.samples:,} samples, {self.steps:,} steps{last}", fraction=1.0)

    def _say(self, message: str, **rest: Any) -> None:
        self.listener(Event(stage="train", message=message, **rest))
