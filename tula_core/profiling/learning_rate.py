"""The range test: short runs at several rates from initial weights, judged on samples held out of the training set.

It runs in the measuring worker of one process, on networks of its own, and puts every random state back: what is
measured or trained later is as it would be without it, but for the rate. The evaluation set is never read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tula_core.engine.assemble import Trainee, assemble
from tula_core.engine.batches import BatchSource, BatchStream, Layout, Pick
from tula_core.engine.evaluate import evaluating, preserved_random_states
from tula_core.engine.failures import kind_of
from tula_core.engine.loop import run_step, summed_loss
from tula_core.mitigations.rates.plan import LearningRate
from tula_core.models.learning.rate_range import for_longer_runs
from tula_core.models.learning.rate_search import Trials, next_place, rate_at
from tula_core.models.learning.schedules import pilot_schedule
from tula_core.profiling.pilot import pilot_layout, step_seconds
from tula_core.profiling.rate_rules import (
    FEWEST_STEPS,
    MOST_RATE_SHARE,
    MOST_STEPS,
    give_probe,
    held_out_samples,
    least_test_s,
    refused_test,
    require_rate,
    shares_of_runs,
    too_short,
    whole_power,
)
from tula_core.profiling.rig import Rig
from tula_core.profiling.scouts import FIRST_LOOK_SHARE
from tula_core.profiling.timing import SizeRun
from tula_core.records import LearningRateTest, RateTrial
from tula_core.seeding import derive_seed, fold
from tula_core.workloads.sizing import Part, part_of, permutation

_LATE = 1.3  # of a run's planned time, from which the others are made shorter
_CHECK_EVERY = 8
_MARGIN = 1.2  # over the seconds that the shortest test takes
_LONGER = 2.0  # times the time is what is advised where longer runs would tell more


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """What a test has to do however much time there is."""

    layout: Layout
    held: int  # samples to hold out at most
    whole: int  # steps of the recipe itself, of which nothing tells more

    @property
    def fewest(self) -> int:
        """The fewest steps of a run that are worth a test."""
        return min(FEWEST_STEPS, self.whole)

    def least_s(self, step_s: float) -> float:
        """Return what the shortest test takes where a step takes ``step_s``, with a margin."""
        return _MARGIN * least_test_s(step_s, self.layout.global_batch, self.held, self.fewest)


@dataclass(frozen=True, kw_only=True, slots=True)
class RatePlan:
    """What each run of a test does, and when the test ends."""

    steps: int
    seeds: int
    held_out: int
    run_s: float  # planned for each run
    stop_at_s: float  # of the rig's time left


def settle_rate(rig: Rig, runs: Sequence[SizeRun], seconds: float) -> None:
    """Find the learning rate within about ``seconds``, emit the test, and give the rate to the rig's job.

    Raises
    ------
    InputError
        No rate is found, and neither the job nor the workload states one.
    """
    rig.release()  # its runs have the memory that a run has
    with preserved_random_states():
        test = _tested(rig, runs, seconds)
    rig.context.emit("learning_rate", **asdict(test))
    require_rate(rig.job.recipe.model_fields_set, test.refused)
    rig.job = rig.job.at_learning_rate(test.used)


def _tested(rig: Rig, runs: Sequence[SizeRun], seconds: float) -> LearningRateTest:
    """Return the test, refused where memory ran out: that says nothing of the sizes, which each fitted."""
    try:
        return measure_rate(rig, runs, seconds)
    except Exception as error:
        if kind_of(error) != "out_of_memory":
            raise
        return refused_test(rig.job.recipe, f"memory ran out in one of its runs ({error}). Use a smaller batch size")


def measure_rate(rig: Rig, runs: Sequence[SizeRun], seconds: float) -> LearningRateTest:
    """Return the test of the recipe's rate at its batch size, made in about ``seconds``.

    Where they are too few for the shortest test and there is time that was kept for later workers, some of it is taken.
    """
    began, recipe = time.monotonic(), rig.job.recipe
    task = _task(rig, runs)
    if isinstance(task, str):
        return refused_test(recipe, task)
    step_s, most_s = max(step_seconds(runs, task.layout), 1e-6), rig.most_left_s()
    search = _Search(rig=rig, task=task, plan=_plan(rig, task, step_s, seconds))
    while search.plan.steps >= task.fewest and not search.run(adaptive=recipe.optimizer != "sgd"):
        # A run has shown how long it takes.
        step_s = search.first_s / (search.plan.steps + search.plan.held_out / task.layout.global_batch)
        search = search.again(_plan(rig, task, step_s, rig.left_s() - search.plan.stop_at_s))
    layout, steps = task.layout, search.plan.steps
    if steps < task.fewest:
        # Of a longer probe the first looks may take their share too.
        missing_s = (task.least_s(step_s) / MOST_RATE_SHARE - most_s) / (1.0 - FIRST_LOOK_SHARE)
        return refused_test(recipe, too_short(steps, task.fewest, rig.job.probe.seconds + max(missing_s, 0.0)))
    times = max(1.0, recipe.epochs * rig.samples / layout.global_batch / steps)
    trials = search.trials()
    found = for_longer_runs(trials.result(give_probe(rig.probe_for(_LONGER))), times)
    return LearningRateTest(
        used=recipe.learning_rate if found.rate is None else float(f"{found.rate:.2g}"),
        low=found.low,
        high=found.high,
        refused=found.refused,
        batch_size=layout.global_batch,
        seeds=min(trials.seeds_used, len(search.initial)),
        steps=steps,
        times_as_long=times,
        held_out=search.plan.held_out,
        seconds=time.monotonic() - began,
        initial_losses=tuple(search.initial),
        trials=tuple(
            RateTrial(learning_rate=rate_at(place), losses=tuple(losses))
            for place, losses in sorted(search.losses.items())
        ),
    )


def _task(rig: Rig, runs: Sequence[SizeRun]) -> _Task | str:
    """Return what has to be done however much time there is, or why nothing can be."""
    held, recipe = held_out_samples(rig.samples), rig.job.recipe
    left = rig.samples - held
    largest = max(run.local_batch for run in runs)
    layout = pilot_layout(min(recipe.batch_size, left), 1, largest, samples=left, least=rig.smallest_batch)
    if held == 0 or layout is None:
        return f"the {rig.samples} training samples are too few to hold some out. Give more samples"
    whole = recipe.epochs * left // layout.global_batch  # nothing tells more than the recipe itself
    return _Task(layout=layout, held=held, whole=whole)


def _granted_s(rig: Rig, task: _Task, step_s: float, seconds: float) -> float:
    """Return the seconds that the test may take: ``seconds``, or more where those are too few for any test."""
    least = task.least_s(step_s)
    if least <= seconds:
        return seconds
    granted = min(least, MOST_RATE_SHARE * rig.most_left_s())
    if granted < max(seconds, least / _MARGIN):
        return seconds  # nor would it be enough then
    rig.claim(granted / MOST_RATE_SHARE)
    return granted


def _plan(rig: Rig, task: _Task, step_s: float, seconds: float) -> RatePlan:
    """Return what each run does in ``seconds``, or in more where they would be too few for any test.

    A plan of fewer than the fewest steps is of no use.
    """
    granted_s = max(_granted_s(rig, task, step_s, seconds), 1e-9)
    shares = shares_of_runs(granted_s, step_s, task.layout.global_batch, task.held, task.fewest)
    return RatePlan(
        steps=min(whole_power(shares.steps), MOST_STEPS, task.whole),
        seeds=shares.seeds,
        held_out=shares.held_out,
        run_s=shares.run_s,
        stop_at_s=rig.left_s() - granted_s,
    )


@dataclass(kw_only=True, slots=True)
class _Search:
    """Runs one after the other until the best rate is known or the time has ended."""

    rig: Rig
    task: _Task
    plan: RatePlan
    losses: dict[int, list[float]] = field(default_factory=dict)
    initial: list[float] = field(default_factory=list)
    first_s: float = 0.0
    _splits: dict[int, tuple[Part, Part]] = field(default_factory=dict)

    def trials(self) -> Trials:
        """Return all that was found so far."""
        return Trials(losses=self.losses, initial=self.initial, seeds=self.plan.seeds)

    def again(self, plan: RatePlan) -> _Search:
        """Return a search by another plan; what was run stays where it is what the plan has run too."""
        if (plan.steps, plan.held_out) != (self.plan.steps, self.plan.held_out):
            return _Search(rig=self.rig, task=self.task, plan=plan)
        return replace(self, plan=plan)

    def run(self, *, adaptive: bool) -> bool:
        """Search to the end; return False where the first run took so long that the time is too short for the rest."""
        began = time.monotonic()
        while (place := next_place(self.trials(), adaptive=adaptive)) is not None:
            loss = self._loss(rate_at(place), len(self.losses.get(place, [])))
            if loss is None:
                ended_first, self.first_s = not self.first_s, self.first_s or time.monotonic() - began
                return not ended_first
            self.losses.setdefault(place, []).append(loss)
            if not self.first_s:
                self.first_s = time.monotonic() - began
                if self.first_s > _LATE * self.plan.run_s:
                    return False
        return True

    def _split(self, number: int, seed: int) -> tuple[Part, Part]:
        """Return what one seed trains on and what it is judged by."""
        if number not in self._splits:
            data: Any = self.rig.workload.train_set()
            order = permutation(self.rig.samples, seed, "held out")
            held = self.plan.held_out
            self._splits[number] = part_of(data, order[held:]), part_of(data, order[:held])
        return self._splits[number]

    def _loss(self, rate: float, number: int) -> float | None:
        """Return the loss of one run over the held-out samples, NaN where it diverged, None where the time ended."""
        seed = derive_seed(self.rig.job.seed, "range test", number)
        train, held = self._split(number, seed)
        recipe = self.rig.job.at_learning_rate(rate).recipe
        trainee = assemble(self.rig.workload, recipe, self.rig.context, seed=seed)
        if number == len(self.initial):
            self.initial.append(self._held_loss(trainee, held, seed))
        diverged = self._train(trainee, train, seed)
        if diverged is None:
            return None
        return math.nan if diverged else self._held_loss(trainee, held, seed)

    def _train(self, trainee: Trainee, data: Part, seed: int) -> bool | None:
        """Take the run's steps; return whether the loss diverged, None where the time ended first."""
        plan, layout, recipe = self.plan, self.task.layout, trainee.recipe
        planned = plan.steps * layout.global_batch
        scheduled = recipe.model_copy(update={"schedule": pilot_schedule(recipe.schedule)})
        rate = LearningRate.plan(scheduled, recipe.batch_size, (), planned)
        stream = BatchStream(
            data,
            samples=len(data),
            layout=layout,
            rank=0,
            seed=seed,
            workers=recipe.loader_workers,
            collate=trainee.workload.collate,
            pin_memory=trainee.device.type == "cuda",
        )
        for number, step in enumerate(stream.from_samples(0)):
            losses, _ = run_step(trainee, step, rate.at(step.samples_before))
            ended = step.samples_after >= planned
            if number % _CHECK_EVERY == 0 or ended:
                if not math.isfinite(float(summed_loss(losses, step.sizes))):
                    return True
                if self.rig.left_s() < plan.stop_at_s and not ended:
                    return None
            if ended:
                break
        return False

    def _held_loss(self, trainee: Trainee, held: Part, seed: int) -> float:
        """Return the mean loss over the held-out samples; every run of a seed sees them in the same form."""
        source = BatchSource(held, trainee.workload.collate)
        batch = self.rig.one_evaluation_batch(self.task.layout.local_batch)
        total = weight = 0.0
        with evaluating(trainee.network), preserved_random_states(), torch.inference_mode():
            for start in range(0, len(held), batch):
                pick = Pick(np.arange(start, min(start + batch, len(held))), fold(seed, start))
                part, size = _batch_loss(trainee, source[pick])
                total, weight = total + part, weight + size
        return total / weight if weight else math.nan


def _batch_loss(trainee: Trainee, loaded: tuple[Any, Any]) -> tuple[float, float]:
    """Return the loss of one batch as sum and weight, which add up whatever the loss is a mean over."""
    inputs, targets = trainee.to_device(loaded)
    with trainee.autocast():
        outputs = trainee.network(inputs)
    outputs = outputs.float() if isinstance(outputs, torch.Tensor) else outputs
    if trainee.weighted is not None:
        return float(trainee.weighted.total(outputs, targets)), float(trainee.weighted.weight(targets))
    size = len(targets)
    return float(trainee.workload.loss(outputs, targets)) * size, float(size)
