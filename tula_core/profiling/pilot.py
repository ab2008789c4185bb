"""Pilots: short real trainings from the initial weights, their schedule in their own length."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from tula_core import mitigations
from tula_core.engine.assemble import Trainee, assemble
from tula_core.engine.batches import Layout, Step
from tula_core.engine.failures import kind_of
from tula_core.engine.loop import run_step, summed_loss
from tula_core.engine.shares import smallest_micro_batch
from tula_core.mitigations.rates.plan import LearningRate
from tula_core.models.learning.schedules import TRAPEZOID_STABLE, annealing, pilot_schedule
from tula_core.profiling.noise import PilotNoise
from tula_core.profiling.rig import Rig
from tula_core.profiling.timing import SizeRun
from tula_core.records import Pilot, PilotPoint

FEWEST_STEPS, GOOD_STEPS = 8, 60
_MOST_POINTS, _FEWEST_POINTS = 8, 2
_FIRST_POINT = 0.02  # of the pilot
_EVALUATION_SHARE = 0.25
_FEWEST_EVALUATED = 200
_PLANNED_SHARE = 0.85  # of the time is planned for, so that a slow phase does not cut the schedule short
_NOISE_SHARE = 0.8  # of the steps fit where gradients are also taken in groups
_CHECK_EVERY = 10
_SHARES_TRIED = 4  # a batch and the next larger ones, where the data do not divide by it


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotPlan:
    """One pilot before it runs."""

    layout: Layout
    planned_samples: int
    evaluate_at: tuple[int, ...]  # samples seen
    eval_limit: int
    steps: int


def evaluation_points(planned_samples: int, count: int) -> tuple[int, ...]:
    """Return ``count`` numbers of samples: in equal ratios to where annealing begins, one half way down, and the end.

    >>> evaluation_points(1000, 5)
    (20, 110, 600, 800, 1000)
    """
    late = [(1 + TRAPEZOID_STABLE) / 2, 1.0] if count > _FEWEST_POINTS else [1.0]
    early = np.geomspace(_FIRST_POINT if count > 3 else TRAPEZOID_STABLE, TRAPEZOID_STABLE, count - len(late))
    return tuple(round(share * planned_samples) for share in [*early.tolist(), *late])


def pilot_layout(
    global_batch: int, processes: int, largest_local: int, *, samples: int, least: int = 1
) -> Layout | None:
    """Return the layout of a pilot, its global batch as near as equal shares allow, accumulating where it must.

    None where every layout near it would leave a process fewer than ``least`` of the ``samples`` in some micro-batch of
    an epoch.
    """
    share = max(least, round(global_batch / processes))
    layouts = (_of_share(own, processes, largest_local) for own in range(share, share + _SHARES_TRIED))
    fitting = (
        layout
        for layout in layouts
        if layout.global_batch <= samples and smallest_micro_batch(samples, layout) >= max(least, 1)
    )
    return next(fitting, None)


def _of_share(share: int, processes: int, largest_local: int) -> Layout:
    fewest = -(-share // largest_local)
    # Micro-batches of one sample are avoided: batch norm cannot use them.
    exact = [count for count in range(fewest, share // 2 + 1) if share % count == 0]
    accumulation = exact[0] if exact else fewest
    return Layout(processes=processes, local_batch=-(-share // accumulation), accumulation=accumulation)


def step_seconds(runs: Sequence[SizeRun], layout: Layout) -> float:
    """Return what a step of ``layout`` takes by the sizes that were timed."""
    known = sorted((run.local_batch, run.estimate_s) for run in runs)
    sizes, seconds = zip(*known, strict=True)
    return float(np.interp(layout.local_batch, sizes, seconds)) * layout.accumulation


class Pilots:
    """The pilots of one worker."""

    def __init__(
        self,
        rig: Rig,
        runs: Sequence[SizeRun],
        batches: Sequence[int],
        *,
        limit: int,
        eval_sample_s: float,
        noise: bool,
    ) -> None:
        self._rig = rig
        self._runs = runs
        self._limit = limit
        self._eval_sample_s = eval_sample_s
        self._noise = noise
        largest = max(run.local_batch for run in runs)
        self._layouts: list[Layout] = []
        for batch in batches:
            layout = pilot_layout(batch, rig.context.processes, largest, samples=rig.samples, least=rig.smallest_batch)
            if layout is None:
                rig.context.emit("no_pilot_layout", global_batch=batch)
            else:
                self._layouts.append(layout)

    def wanted_s(self) -> float:
        """Return the seconds in which every pilot could be the whole recipe, on every rank alike."""
        evaluations = _MOST_POINTS * self._limit * self._eval_sample_s
        total = sum(self._recipe_samples / layout.global_batch * self._step_s(layout) for layout in self._layouts)
        wanted = (total / _NOISE_SHARE + evaluations * len(self._layouts)) / _PLANNED_SHARE
        return self._rig.context.broadcast(wanted)

    def least_s(self) -> float:
        """Return the seconds below which some pilot would have fewer than the fewest steps and evaluations."""
        evaluated_s = _FEWEST_POINTS * min(self._limit, _FEWEST_EVALUATED) * self._eval_sample_s
        steps = FEWEST_STEPS / (_NOISE_SHARE if self._noise else 1.0)
        training_s = [steps * self._step_s(layout) for layout in self._layouts]
        usual_s = _PLANNED_SHARE - _EVALUATION_SHARE
        least_s = [max((each_s + evaluated_s) / _PLANNED_SHARE, each_s / usual_s) for each_s in training_s]
        return len(least_s) * max(least_s, default=0.0)  # they share their time evenly

    def run(self, seconds: float) -> None:
        """Run them all within about ``seconds``; each is emitted again at each of its evaluations."""
        until = self._rig.left_s() - seconds
        for index, layout in enumerate(self._layouts):
            allotted = (self._rig.left_s() - until) / (len(self._layouts) - index)
            plan = self._plan(layout, allotted, with_noise=self._with_noise(index))
            if plan is None:
                self._rig.context.emit("no_pilot", global_batch=layout.global_batch)
                continue
            self._rig.release()  # a run has one network, and a pilot no less memory than a run
            self._rig.context.emit("piloting", global_batch=layout.global_batch)
            self._try(plan, self._rig.left_s() - allotted, with_noise=self._with_noise(index))
            self._rig.context.emit("piloting", global_batch=None)

    def _try(self, plan: PilotPlan, stop_at_s: float, *, with_noise: bool) -> None:
        """Run a pilot; where memory runs out one process goes on, and of several the others would wait for ever."""
        try:
            _run_pilot(self._rig, plan, stop_at_s=stop_at_s, with_noise=with_noise)
        except Exception as error:
            if self._rig.context.processes > 1 or kind_of(error) != "out_of_memory":
                raise
            self._rig.context.emit("pilot_failed", global_batch=plan.layout.global_batch)

    def _with_noise(self, index: int) -> bool:
        return self._noise and index == len(self._layouts) - 1

    @property
    def _recipe_samples(self) -> int:
        return self._rig.job.recipe.epochs * self._rig.samples

    def _plan(self, layout: Layout, seconds: float, *, with_noise: bool) -> PilotPlan | None:
        broadcast = self._rig.context.broadcast
        evaluation_s = _EVALUATION_SHARE * seconds
        affordable = int(evaluation_s / _FEWEST_POINTS / max(self._eval_sample_s, 1e-9))
        limit = int(broadcast(min(self._limit, max(affordable, _FEWEST_EVALUATED))))
        each_s = limit * self._eval_sample_s
        points = int(broadcast(max(_FEWEST_POINTS, min(_MOST_POINTS, int(evaluation_s / max(each_s, 1e-9))))))
        training_s = _PLANNED_SHARE * seconds - points * each_s
        steps = training_s / self._step_s(layout) * (_NOISE_SHARE if with_noise else 1.0)
        planned = int(broadcast(min(max(0.0, steps) * layout.global_batch, self._recipe_samples)))
        full_recipe = planned >= self._recipe_samples
        if planned < FEWEST_STEPS * layout.global_batch and not full_recipe:
            return None
        return PilotPlan(
            layout=layout,
            planned_samples=planned,
            evaluate_at=evaluation_points(planned, points),
            eval_limit=limit,
            steps=math.ceil(planned / layout.global_batch),
        )

    def _step_s(self, layout: Layout) -> float:
        return step_seconds(self._runs, layout)


@dataclass(slots=True)
class _Course:
    """What a running pilot has seen; loss sums are this process's, ``samples`` are of all.

    Samples of steps that mixed precision skipped taught nothing: neither schedule nor curve counts them.
    """

    samples: int = 0
    skipped: int = 0
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    loss_samples: int = 0
    points: list[PilotPoint] = field(default_factory=list)
    diverged: bool = False

    @property
    def counted(self) -> int:
        """Samples that the weights were updated with."""
        return self.samples - self.skipped


def _run_pilot(rig: Rig, plan: PilotPlan, *, stop_at_s: float, with_noise: bool) -> None:
    began = time.monotonic()
    recipe, layout = rig.job.recipe, plan.layout
    trainee = assemble(rig.workload, recipe, rig.context, seed=rig.job.seed)
    scheduled = recipe.model_copy(update={"schedule": pilot_schedule(recipe.schedule)})
    names = mitigations.resolve(rig.job)
    options = mitigations.complete(names, rig.job.mitigation_options)
    rate = LearningRate.plan(scheduled, layout.global_batch, names, plan.planned_samples, options)
    noise = PilotNoise(rig, trainee, layout, plan.steps) if with_noise else None
    course = _Course(loss=torch.zeros((), dtype=torch.float64, device=rig.context.device))
    waiting = list(plan.evaluate_at)

    def report() -> None:
        if course.counted == 0 and not course.diverged:
            return  # no update was made: this is no point of a curve
        _evaluate(rig, trainee, plan, course)
        pilot = Pilot(
            global_batch=layout.global_batch,
            learning_rate=rate.peak,
            planned_samples=plan.planned_samples,
            seconds=time.monotonic() - began,
            points=tuple(course.points),
            diverged=course.diverged,
        )
        rig.context.emit("pilot", steps=plan.steps, **asdict(pilot))

    for number, step in enumerate(rig.stream(layout).from_samples(0)):
        _take(trainee, step, rate, course, noise if number >= plan.steps // 2 else None)
        ended = course.samples >= plan.planned_samples
        if number % _CHECK_EVERY == 0 and not ended:
            course.diverged = not math.isfinite(_agreed_loss(rig, course)[0])
            ended = course.diverged or rig.left_s() < stop_at_s
        if ended or course.samples >= waiting[0]:
            report()
            waiting = [at for at in waiting if at > course.samples] or [plan.planned_samples]
        if ended or course.diverged:
            break
    if not course.points:
        rig.context.emit("no_update", global_batch=layout.global_batch)
    result = noise.result() if noise is not None else None
    if result is not None:
        rig.context.emit("noise", **asdict(result))


def _take(trainee: Trainee, step: Step, rate: LearningRate, course: _Course, noise: PilotNoise | None) -> None:
    position = step.samples_before - course.skipped
    losses, updated = run_step(
        trainee, step, rate.at(position), observe=noise.observer(step) if noise is not None else None
    )
    course.samples = step.samples_after
    course.skipped += 0 if updated else step.global_samples
    course.loss += summed_loss(losses, step.sizes)
    course.loss_samples += sum(step.sizes)


def _agreed_loss(rig: Rig, course: _Course) -> tuple[float, float]:
    """Return the summed loss and the samples since the last evaluation, over all processes."""
    total, samples = rig.context.all_reduce_sum([float(course.loss), float(course.loss_samples)])
    return total, samples


def _evaluate(rig: Rig, trainee: Trainee, plan: PilotPlan, course: _Course) -> None:
    total, samples = _agreed_loss(rig, course)
    course.diverged = course.diverged or not math.isfinite(total)
    done = min(1.0, course.counted / plan.planned_samples)
    metric, evaluated, _ = rig.evaluate_part(trainee, plan.layout.local_batch, plan.eval_limit)
    # The last update may have ruined the weights, and then the loss before it does not show it.
    course.diverged = course.diverged or not math.isfinite(metric)
    course.points.append(
        PilotPoint(
            samples=course.counted or course.samples,  # of a pilot that diverged before its first update
            schedule_fraction=done,
            annealing=float(annealing(pilot_schedule(rig.job.recipe.schedule), np.array(done))),
            train_loss=total / max(samples, 1.0),
            metric=metric,
            eval_samples=evaluated,
        )
    )
    course.loss.zero_()
    course.loss_samples = 0
