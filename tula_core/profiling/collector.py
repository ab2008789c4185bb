"""What the measuring workers have said so far, as records; the latest word on a configuration counts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

from tula_core.models.memory import ContentMargin
from tula_core.profiling.worlds import World
from tula_core.progress import Event, Listener
from tula_core.records import (
    CommunicationTiming,
    ContentMemory,
    EvaluationTiming,
    GradientNoise,
    HostMemory,
    LearningRateTest,
    MemoryUse,
    Pilot,
    PowerUse,
    PrecisionTiming,
    StartUp,
    StepTiming,
)

T = TypeVar("T")

_DRIFT = 0.2  # from which a change of speed during a sweep is spoken of
_FEW_PILOT_STEPS = 60


class Collector:
    """Hears a worker's events; `world` says whose they are."""

    def __init__(self, listener: Listener, budget_s: float) -> None:
        self.world = World(nodes=1, processes_per_node=1)
        self.trying: int | None = None
        self.piloting: int | None = None  # global batch of the pilot under way: every size was measured before it
        self.swept: dict[str, Any] = {}  # what the worker said of its sizes once they were measured
        self.steps: dict[tuple[World, int], StepTiming] = {}
        self.memory: dict[tuple[World, int], MemoryUse] = {}
        self.communication: dict[tuple[World, int], CommunicationTiming] = {}
        self.evaluation: dict[World, EvaluationTiming] = {}
        self.start_up: dict[World, StartUp] = {}
        self.pilots: dict[tuple[World, int], Pilot] = {}
        self.power: dict[tuple[World, int], PowerUse] = {}
        self.noise: GradientNoise | None = None
        self.checkpoint_s: float | None = None
        self.first_heard_s: float | None = None  # when the first step of all was known, in seconds from the beginning
        self.precisions: dict[tuple[str, int], PrecisionTiming] = {}
        self.content: ContentMemory | None = None
        self.host: HostMemory | None = None
        self.learning_rate: LearningRateTest | None = None
        self.warnings: list[str] = []
        self.failed: list[str] = []
        self.first_traceback = ""
        self._listener = listener
        self._budget_s = budget_s
        self._began_s = time.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds since the measuring began."""
        return time.monotonic() - self._began_s

    def begin(self, world: World) -> None:
        """Say that ``world`` is measured from now on."""
        self.world, self.trying, self.piloting, self.swept = world, None, None, {}
        self.say(f"starting {world}")

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event of the worker."""
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler({key: value for key, value in event.items() if key not in ("kind", "at_s")})

    def record_failed(self, outcome: str, local_batch: int) -> None:
        """Keep that a local batch did not fit, as a data point; its timing, if any, does not stand for a run."""
        key = (self.world, local_batch)
        self.memory[key] = _record(
            MemoryUse, self._shape() | {"local_batch": local_batch, "peak_bytes": None, "outcome": outcome}
        )
        self.steps.pop(key, None)
        what = "ran out of memory" if outcome == "out_of_memory" else "was killed"
        self.warn(f"a local batch of {local_batch} on {self.world} {what}")

    def note_failure(self, what: str, traceback: str) -> None:
        """Keep why a size failed, and the first traceback of all: later failures often follow from the first."""
        self.failed.append(what)
        self.first_traceback = self.first_traceback or traceback

    def warn(self, message: str) -> None:
        """Keep a warning for the profile and say it."""
        if message not in self.warnings:
            self.warnings.append(message)
            self._listener(Event(stage="profile", message=message, level="warning"))

    def say(self, message: str, **data: Any) -> None:
        """Report progress."""
        fraction = min(1.0, self.used_s / self._budget_s)
        self._listener(Event(stage="profile", message=message, fraction=fraction, data=data))

    def largest_fit(self, world: World) -> int | None:
        """Return the largest local batch that ran in ``world``."""
        return max(
            (key[1] for key, use in self.memory.items() if key[0] == world and use.outcome == "ok"), default=None
        )

    def smallest_failed(self) -> int | None:
        """Return the smallest local batch that did not fit anywhere."""
        return min((key[1] for key, use in self.memory.items() if use.outcome != "ok"), default=None)

    def _shape(self) -> dict[str, Any]:
        return {"nodes": self.world.nodes, "processes_per_node": self.world.processes_per_node}

    def _on_trying(self, data: Mapping[str, Any]) -> None:
        self.trying = data["local_batch"]

    def _on_piloting(self, data: Mapping[str, Any]) -> None:
        self.piloting = data["global_batch"]

    def _on_pilot_failed(self, data: Mapping[str, Any]) -> None:
        self.pilot_failed("out_of_memory", data["global_batch"])

    def pilot_failed(self, outcome: str, global_batch: int) -> None:
        """Say that a pilot ended before its time; its sizes were measured, and what they need is known."""
        what = "ran out of memory" if outcome == "out_of_memory" else "was killed"
        self.warn(f"the pilot at a global batch of {global_batch} on {self.world} {what}: it tells little or nothing")

    def _on_no_noise(self, data: Mapping[str, Any]) -> None:
        self.warn("a reading of the gradient noise did not fit in memory beside the pilot: no more were taken")

    def _on_swept(self, data: Mapping[str, Any]) -> None:
        self.swept = dict(data)

    def _on_memory(self, data: Mapping[str, Any]) -> None:
        use = _record(MemoryUse, self._shape() | dict(data))
        self.memory[self.world, use.local_batch] = use
        if use.outcome == "over_limit":
            self.warn(
                f"a local batch of {use.local_batch} on {self.world} needed more memory than may be used: it ran, and "
                "is taken for one that does not fit"
            )

    def _on_content(self, data: Mapping[str, Any]) -> None:
        self.content = _record(ContentMemory, data)
        margin = ContentMargin.of(self.content)
        if margin.depends:
            self.warn(
                f"memory depends on what is in the samples: of {self.content.samples} tried the fullest needs "
                f"{margin.worst:.3g} times the mean. The upper end of memory counts with such samples, and rarer ones "
                "may need more"
            )

    def _on_host(self, data: Mapping[str, Any]) -> None:
        self.host = _record(HostMemory, data)

    def _on_precision(self, data: Mapping[str, Any]) -> None:
        timing = _record(PrecisionTiming, data)
        self.precisions[timing.precision, timing.local_batch] = timing
        if timing.compute_s is None or timing.reference_compute_s is None:
            self.warn(f"training in {timing.precision} failed and is left out: {timing.failure}")
            return
        self.say(
            f"{timing.precision}, local batch {timing.local_batch}: forward and backward pass in "
            f"{timing.compute_s / timing.reference_compute_s:.2f} times the recipe's seconds"
        )

    def _on_step(self, data: Mapping[str, Any]) -> None:
        timing = _record(StepTiming, data)
        self.first_heard_s = self.used_s if self.first_heard_s is None else self.first_heard_s
        self.steps[self.world, timing.local_batch] = timing
        rate = self.world.processes * timing.local_batch / timing.step_time_s
        self.say(
            f"{self.world}, local batch {timing.local_batch}: {1e3 * timing.step_time_s:.3g} ms per step",
            images_per_s=rate,
        )

    def _on_communication(self, data: Mapping[str, Any]) -> None:
        timing = _record(CommunicationTiming, self._shape() | dict(data))
        self.communication[self.world, timing.message_bytes] = timing

    def _on_evaluation(self, data: Mapping[str, Any]) -> None:
        self.evaluation[self.world] = _record(EvaluationTiming, self._shape() | dict(data))

    def _on_checkpoint(self, data: Mapping[str, Any]) -> None:
        if self.checkpoint_s is None:
            self.checkpoint_s = float(data["seconds"])

    def _on_drift(self, data: Mapping[str, Any]) -> None:
        if abs(data["share"]) > _DRIFT:
            self.warn(f"timing drifted by {100 * data['share']:+.0f} % during the sweep of {self.world}")

    def _on_loading_untimed(self, data: Mapping[str, Any]) -> None:
        sizes = ", ".join(str(size) for size in data["local_batches"])
        self.warn(
            f"there was no time for whole rounds of the loader workers on {self.world} at a local batch of {sizes}: "
            "the step is reckoned from what a batch takes to make, and less sure. Give probe.seconds more"
        )

    def _on_power(self, data: Mapping[str, Any]) -> None:
        use = _record(PowerUse, data)
        self.power[self.world, use.local_batch] = use

    def _on_no_power(self, data: Mapping[str, Any]) -> None:
        if data["device"] != "cpu":  # few CPU machines let a user read their meter, and there it surprises nobody
            self.warn(data["reason"])

    def _on_power_disagreement(self, data: Mapping[str, Any]) -> None:
        self.warn(data["text"])

    def _on_noise(self, data: Mapping[str, Any]) -> None:
        self.noise = _record(GradientNoise, data)

    def _on_learning_rate(self, data: Mapping[str, Any]) -> None:
        self.tested(_record(LearningRateTest, data))

    def tested(self, test: LearningRateTest) -> None:
        """Take the result of a range test and say it."""
        self.learning_rate = test
        if test.found:
            self._listener(Event(stage="profile", message=test.summary, level="info"))
        else:
            self.warn(test.summary)

    def _on_no_pilot(self, data: Mapping[str, Any]) -> None:
        self.warn(f"there was no time for a pilot at a global batch of {data['global_batch']}: give probe.seconds more")

    def _on_no_update(self, data: Mapping[str, Any]) -> None:
        self.warn(
            f"every update of the pilot at a global batch of {data['global_batch']} was skipped, as its gradients "
            "were not finite in fp16: nothing was learnt from it. Choose recipe.precision bf16 or fp32."
        )

    def _on_no_pilot_layout(self, data: Mapping[str, Any]) -> None:
        self.warn(f"the data are too few for a pilot at a global batch of {data['global_batch']} on {self.world}")

    def _on_pilot(self, data: Mapping[str, Any]) -> None:
        steps = data["steps"]
        # A metric may be anything once the loss is not finite; only finite ones are read, see Pilot.diverged.
        pilot = _record(Pilot, {key: value for key, value in data.items() if key != "steps"})
        self.pilots[self.world, pilot.global_batch] = pilot
        point = pilot.points[-1]
        self.say(
            f"pilot at a global batch of {pilot.global_batch}, {100 * point.schedule_fraction:.0f} % done",
            loss=point.train_loss,
            metric=point.metric,
        )
        if pilot.diverged:
            self.warn(f"the pilot at a global batch of {pilot.global_batch} diverged")
        elif steps < _FEW_PILOT_STEPS and point.schedule_fraction >= 1.0:
            self.warn(f"the pilot at a global batch of {pilot.global_batch} had only {steps} steps")


def _record(kind: type[T], data: Mapping[str, Any]) -> T:
    return TypeAdapter(kind).validate_python(dict(data))
