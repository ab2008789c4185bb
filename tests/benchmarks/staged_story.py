"""What the folder of a run tells: its launches, the seconds of its stages, the cost of kills, the samples dealt."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tula_core.engine.batches import BatchStream, Layout
from tula_core.records import Outcome, Stage, load
from tula_core.tracking.spent import attempt_folder, parts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Processes from their start to their last word; moments are seconds of the clock.

    Attributes
    ----------
    attempt
        The attempt it belongs to, from 1.
    from_samples, from_trained_s
        Samples and seconds of training that the run had behind it, as its checkpoint says.
    changes
        When a layout came into force, and from which sample on.
    """

    attempt: int
    nodes: int
    started_at_s: float
    ready_at_s: float
    ended_at_s: float
    from_samples: int
    from_trained_s: float
    changes: tuple[tuple[float, int], ...]

    @property
    def start_up_s(self) -> float:
        """Seconds until the processes began to train."""
        return self.ready_at_s - self.started_at_s

    @property
    def trained_s(self) -> float:
        """Seconds from then to their last word."""
        return self.ended_at_s - self.ready_at_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """What kills cost: seconds that were trained in vain, seconds of starting anew, and both times their nodes."""

    in_vain_s: float
    start_up_s: float
    node_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """What the engine deals out along a run: steps of each stage, where steps end, how often each sample came.

    ``counts`` has shape (epochs, samples).
    """

    steps: tuple[int, ...]
    ends: frozenset[int]
    counts: NDArray[np.int64]

    @property
    def once_an_epoch(self) -> bool:
        """Whether every sample came once in every epoch."""
        return bool((self.counts == 1).all())


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A logical run with all of its attempts."""

    outcome: Outcome
    launches: tuple[Launch, ...]
    weights: str

    @classmethod
    def of(cls, run_folder: Path) -> Story:
        """Return what the folder of a run that was trained to its end tells."""
        outcome = load(Outcome, run_folder / "outcome.json")
        found = [
            launch
            for number in range(1, outcome.attempt + 1)
            for part in parts_of(attempt_folder(run_folder, number))
            if (launch := told_launch(part, number)) is not None
        ]
        return cls(outcome=outcome, launches=tuple(found), weights=weights_digest(run_folder / "checkpoint.pt"))


def resumed_at(launches: Sequence[Launch]) -> tuple[int, ...]:
    """Return the samples at which later attempts took the run up."""
    return tuple(after.from_samples for before, after in itertools.pairwise(launches) if after.attempt > before.attempt)


def stage_seconds(stages: Sequence[Stage], launches: Sequence[Launch]) -> list[float]:
    """Return the seconds that each stage trained, in all attempts and with what was trained in vain."""
    starts, seconds = [stage.from_samples for stage in stages], [0.0] * len(stages)
    for launch in launches:
        moments = [(launch.ready_at_s, launch.from_samples), *launch.changes]
        ends = [at for at, _ in moments[1:]] + [launch.ended_at_s]
        for (at, samples), end in zip(moments, ends, strict=True):
            seconds[bisect.bisect_right(starts, samples) - 1] += end - at
    return seconds


def lost_to_kills(launches: Sequence[Launch]) -> Lost:
    """Return what was trained after the last checkpoint of an attempt, and the start of the processes that go on."""
    in_vain_s = start_up_s = node_s = 0.0
    for before, after in itertools.pairwise(launches):
        if after.attempt == before.attempt:
            continue
        kept_s = max(0.0, after.from_trained_s - before.from_trained_s)
        vain_s = max(0.0, before.trained_s - kept_s)
        in_vain_s, start_up_s = in_vain_s + vain_s, start_up_s + after.start_up_s
        node_s += before.nodes * vain_s + after.nodes * after.start_up_s
    return Lost(in_vain_s=in_vain_s, start_up_s=start_up_s, node_s=node_s)


def weights_digest(checkpoint: Path) -> str:
    """Return a digest of every weight and buffer of the network in a checkpoint."""
    network: Mapping[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["network"]
    found = hashlib.sha256()
    for name, values in sorted(network.items()):
        found.update(name.encode() + values.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class _Numbers:
    """A data set whose samples are their own numbers."""

    deterministic = True

    def get_batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers."""
        numbers = torch.from_numpy(indices)
        return numbers, numbers


def dealt(stages: Sequence[Stage], train_samples: int, epochs: int, seed: int) -> Dealt:
    """Return what the engine deals out to the processes of each stage, from the samples where it really began."""
    counts = np.zeros((epochs, train_samples), dtype=np.int64)
    ends, steps = set(), []
    untils = [stage.from_samples for stage in stages[1:]] + [epochs * train_samples]
    for stage, until in zip(stages, untils, strict=True):
        processes = stage.nodes * stage.processes_per_node
        layout = Layout(processes=processes, local_batch=stage.local_batch, accumulation=stage.accumulation)
        for rank in range(processes):
            stream = BatchStream(_Numbers(), samples=train_samples, layout=layout, rank=rank, seed=seed)
            taken = 0
            for step in stream.from_samples(stage.from_samples):
                for numbers, _ in step.micro_batches:
                    np.add.at(counts[step.samples_before // train_samples], numbers.numpy(), 1)
                ends.add(step.samples_after)
                taken += 1
                if step.samples_after >= until:
                    break
        steps.append(taken)
    return Dealt(steps=tuple(steps), ends=frozenset(ends), counts=counts)


def told_launch(folder: Path, attempt: int) -> Launch | None:
    """Return a launch from the files of its workers; None where they were never ready."""
    events = _whole_events(folder / "events.jsonl")
    ready = _first(events, "ready")
    if ready is None:
        return None
    resumed = _first(events, "resumed") or {"samples": 0, "elapsed_s": 0.0}
    config = folder / "config.json"
    return Launch(
        attempt=attempt,
        nodes=int(json.loads(config.read_text())["nodes"]),
        started_at_s=config.stat().st_mtime,
        ready_at_s=ready["at_s"],
        ended_at_s=events[-1]["at_s"],
        from_samples=int(resumed["samples"]),
        from_trained_s=float(resumed["elapsed_s"]),
        changes=tuple((event["at_s"], event["from_samples"]) for event in events if event["kind"] == "layout"),
    )


def _whole_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, whose last line a kill may have cut."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


def _first(events: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    return next((event for event in events if event["kind"] == kind), None)
