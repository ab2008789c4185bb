"""What a run takes beside its steps, and the sum: start-up, first step, tails, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tula_core.models.checkpoints import CHECKPOINT_EVERY_S, CHECKPOINT_SHARE
from tula_core.models.inference.scatter import machine_scatter
from tula_core.models.step.time import Shapes
from tula_core.records.profile import Profile, StepTiming

Array = NDArray[np.float64]

ASSUMED_START_UP_S = 10.0
_ASSUMED_SD = 0.7
_MEASURED_SD = 0.15
_FAR_SD = 0.2  # per octave of processes from the nearest measured number
_EVALUATION_EXPONENT = 0.7  # speed-up of an evaluation with processes where one number of them was measured


def steps_per_epoch(train_samples: int, global_batch: Array) -> Array:
    """Return ceil(N/B): the last step of an epoch may hold fewer samples.

    >>> float(steps_per_epoch(257, np.array([64.0]))[0])
    5.0
    """
    return np.asarray(np.ceil(train_samples / global_batch))


def tail_shapes(train_samples: int, shapes: Shapes) -> tuple[Shapes, NDArray[np.bool_]]:
    """Return the configurations of the last, smaller step of an epoch, and where there is one.

    The samples left over are shared among the processes and split into as many micro-batches as they need.
    """
    left = train_samples - np.floor(train_samples / shapes.global_batch) * shapes.global_batch
    share = np.maximum(np.ceil(left / shapes.processes), 1.0)
    accumulation = np.ceil(share / shapes.local_batch)
    tail = Shapes(
        nodes=shapes.nodes,
        processes_per_node=shapes.processes_per_node,
        local_batch=np.ceil(share / accumulation),
        accumulation=accumulation,
    )
    return tail, np.asarray(left > 0)


def time_to_train_s(
    once_s: Array, epochs: Array, epoch_s: Array, evaluation_s: Array, checkpoint_s: Array | float
) -> Array:
    """Return once + two checkpoints + epochs x (steps + evaluation) x (1 + share of checkpoints), launch to end.

    Parameters
    ----------
    once_s
        Start-up, and what the first step takes beyond a steady one.
    epochs
        Whole epochs; training ends only at an epoch's end, where it evaluates.
    epoch_s
        All steps of one epoch, its tail included.
    evaluation_s, checkpoint_s
        One evaluation, one checkpoint; the first and the last checkpoint are always written.
    """
    share = checkpoint_share(checkpoint_s)
    return np.asarray(once_s + 2 * checkpoint_s + epochs * (epoch_s + evaluation_s) * (1 + share))


def checkpoint_share(checkpoint_s: Array | float) -> Array:
    """Return the seconds given to checkpoints over those of everything else, as `checkpoint_wait_s` spaces them."""
    return np.asarray(np.minimum(checkpoint_s / CHECKPOINT_EVERY_S, CHECKPOINT_SHARE))


@dataclass(frozen=True, kw_only=True, slots=True)
class ByProcesses:
    """A duration by number of processes: the measured mean where measured, else base + slope x term(K)."""

    measured: tuple[tuple[float, float], ...]  # (processes, seconds), sorted
    base_s: float
    slope_s: float
    exponent: float  # term(K) = K^exponent
    assumed: bool
    scatter: float = 0.0  # log standard deviation of the machine's speed

    def predict(self, processes: Array) -> tuple[Array, Array]:
        """Return seconds and their log standard deviation, each of shape (n,)."""
        value = self.base_s + self.slope_s * processes**self.exponent
        if not self.measured:
            return value, np.full_like(processes, _ASSUMED_SD)
        known = np.array(self.measured)
        octaves = np.abs(np.log2(processes)[:, None] - np.log2(known[:, 0])[None, :])
        nearest = octaves.argmin(axis=1)
        distance = octaves[np.arange(len(processes)), nearest]
        value = np.where(distance == 0, known[nearest, 1], value)
        return value, np.sqrt(_MEASURED_SD**2 + self.scatter**2 + (_FAR_SD * distance) ** 2) + (
            _ASSUMED_SD if self.assumed else 0.0
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """Start-up, one evaluation and one checkpoint; ``evaluation`` is None where none was measured."""

    start_up: ByProcesses
    evaluation: ByProcesses | None
    checkpoint_s: float
    new_shape_s: float = 0.0  # of the first step at each further batch size in a process that has begun


def fit_overheads(profile: Profile) -> Overheads:
    """Return what a run takes beside its steps.

    Start-up grows linearly with the processes, an evaluation has a share that they divide; both are fitted with
    coefficients that are not negative where two numbers of processes were measured.
    """
    start = _means((row.nodes * row.processes_per_node, row.seconds) for row in profile.start_up)
    scale, scatter = profile.facts.eval_samples, machine_scatter(profile.steps)
    tests = _means(
        (row.nodes * row.processes_per_node, row.seconds / row.samples * scale) for row in profile.evaluation
    )
    return Overheads(
        start_up=_fit(start, exponent=1.0, scatter=scatter) if start else _constant(ASSUMED_START_UP_S),
        evaluation=_fit(tests, exponent=-1.0, scatter=scatter) if tests else None,
        checkpoint_s=profile.checkpoint_s or 0.0,
        new_shape_s=new_shape_s(profile.steps),
    )


def new_shape_s(rows: Sequence[StepTiming]) -> float:
    """Return what the first step of a further batch size takes beyond a steady one, at least; 0.0 with one size.

    Kernels are compiled and tuned anew for each shape, and the tail of an epoch is one. A world's sizes are tried from
    the smallest on, whose first step holds the start of the process too; every later row holds that start as well.
    The least of all counts: larger sizes also take new memory, which a tail does not.
    """
    worlds: dict[tuple[int, int], list[StepTiming]] = {}
    for row in rows:
        worlds.setdefault((row.nodes, row.processes_per_node), []).append(row)
    found = []
    for world in worlds.values():
        first, *later = sorted(world, key=lambda row: row.local_batch)
        found += [row.first_step_s - row.step_time_s - (first.first_step_s - first.step_time_s) for row in later]
    return max(0.0, min(found, default=0.0))


def _constant(seconds: float) -> ByProcesses:
    return ByProcesses(measured=(), base_s=seconds, slope_s=0.0, exponent=1.0, assumed=True)


def _means(rows: Iterable[tuple[int, float]]) -> list[tuple[float, float]]:
    groups: dict[int, list[float]] = {}
    for processes, seconds in rows:
        groups.setdefault(processes, []).append(seconds)
    return [(float(processes), float(np.mean(found))) for processes, found in sorted(groups.items())]


def _fit(measured: Sequence[tuple[float, float]], *, exponent: float, scatter: float) -> ByProcesses:
    processes, seconds = np.array(measured).T
    if len(measured) == 1:
        # One number of processes: start-up is taken as constant, an evaluation as scaling less than perfectly.
        power = 0.0 if exponent > 0 else -_EVALUATION_EXPONENT
        slope = float(seconds[0] / processes[0] ** power)
        return ByProcesses(
            measured=tuple(measured), base_s=0.0, slope_s=slope, exponent=power, assumed=False, scatter=scatter
        )
    weight = 1.0 / np.maximum(seconds, 1e-9)
    columns = np.stack([np.ones_like(processes), processes**exponent], axis=1)
    (base, slope), _ = nnls(columns * weight[:, None], seconds * weight)
    return ByProcesses(
        measured=tuple(measured),
        base_s=float(base),
        slope_s=float(slope),
        exponent=exponent,
        assumed=False,
        scatter=scatter,
    )
