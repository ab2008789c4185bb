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
    MOST_STEPS,
    held_out_samples,
    refused_test,
    require_rate,
    shares_of_runs,
    too_short,
    whole_power,
)
from tula_core.profiling.rig import Rig
from tula_core.profiling.timing import SizeRun
from tula_core.records import LearningRateTest, RateTrial
from tula_core.seeding import derive_seed, fold
from tula_core.workloads.sizing import Part, part_of, permutation

_LATE = 1.3  # of a run's planned time, from which the others are made shorter
_CHECK_EVERY = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RatePlan:
    """What each run of a test does, and when the test ends."""

    layout: Layout
    steps: int
    fewest: int  # that are worth a test
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
    """Return the test of the recipe's rate at its batch size, made in about ``seconds`` or less."""
    began = time.monotonic()
    recipe = rig.job.recipe
    plan = _plan(rig, runs, seconds)
    if isinstance(plan, str):
        return refused_test(recipe, plan)
    search = _Search(rig=rig, plan=plan)
    while search.plan.steps >= plan.fewest and not search.run(adaptive=recipe.optimizer != "sgd"):
        search = _Search(rig=rig, plan=_shortened(search))
    if search.plan.steps < plan.fewest:
        why = too_short(search.plan.steps, plan.fewest, plan.fewest / max(search.plan.steps, 1))
        return refused_test(recipe, why)
    layout, steps = plan.layout, search.plan.steps
    times = max(1.0, recipe.epochs * rig.samples / layout.global_batch / steps)
    found = for_longer_runs(search.trials().result(), times)
    return LearningRateTest(
        used=recipe.learning_rate if found.rate is None else float(f"{found.rate:.2g}"),
        low=found.low,
        high=found.high,
        refused=found.refused,
        batch_size=layout.global_batch,
        seeds=len(search.initial),
        steps=steps,
        times_as_long=times,
        held_out=plan.held_out,
        seconds=time.monotonic() - began,
        initial_losses=tuple(search.initial),
        trials=tuple(
            RateTrial(learning_rate=rate_at(place), losses=tuple(losses))
            for place, losses in sorted(search.losses.items())
        ),
    )


def _plan(rig: Rig, runs: Sequence[SizeRun], seconds: float) -> RatePlan | str:
    """Return what to do in the time, or why nothing can be done."""
    held, recipe = held_out_samples(rig.samples), rig.job.recipe
    left = rig.samples - held
    largest = max(run.local_batch for run in runs)
    layout = pilot_layout(min(recipe.batch_size, left), 1, largest, samples=left, least=rig.smallest_batch)
    if held == 0 or layout is None:
        return f"the {rig.samples} training samples are too few to hold some out. Give more samples"
    step_s = max(step_seconds(runs, layout), 1e-6)
    seeds, run_s, held, fitting = shares_of_runs(seconds, step_s, layout.global_batch, held)
    whole = recipe.epochs * left // layout.global_batch  # nothing tells more than the recipe itself
    fewest = min(FEWEST_STEPS, whole)
    steps = min(whole_power(fitting), MOST_STEPS, whole)
    if steps < fewest:
        return too_short(steps, fewest, 1 + (fewest - fitting) * step_s / run_s)
    return RatePlan(
        layout=layout,
        steps=steps,
        fewest=fewest,
        seeds=seeds,
        held_out=held,
        run_s=run_s,
        stop_at_s=rig.left_s() - seconds,
    )


def _shortened(search: _Search) -> RatePlan:
    """Return a plan of as many steps as the time allows, once a run has shown how long it takes."""
    plan = search.plan
    return replace(plan, steps=min(plan.steps // 2, whole_power(plan.steps * plan.run_s / search.first_s)))


@dataclass(kw_only=True, slots=True)
class _Search:
    """Runs one after the other until the best rate is known or the time has ended."""

    rig: Rig
    plan: RatePlan
    losses: dict[int, list[float]] = field(default_factory=dict)
    initial: list[float] = field(default_factory=list)
    first_s: float = 0.0
    _splits: dict[int, tuple[Part, Part]] = field(default_factory=dict)

    def trials(self) -> Trials:
        """Return all that was found so far."""
        return Trials(losses=self.losses, initial=self.initial, seeds=self.plan.seeds)

    def run(self, *, adaptive: bool) -> bool:
        """Search to the end; return False where the first run took so long that the time is too short for the rest."""
        began = time.monotonic()
        while (place := next_place(self.trials(), adaptive=adaptive)) is not None:
            loss = self._loss(rate_at(place), len(self.losses.get(place, [])))
            if loss is None:
                return bool(self.first_s)
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
        plan, recipe = self.plan, trainee.recipe
        planned = plan.steps * plan.layout.global_batch
        scheduled = recipe.model_copy(update={"schedule": pilot_schedule(recipe.schedule)})
        rate = LearningRate.plan(scheduled, recipe.batch_size, (), planned)
        stream = BatchStream(
            data,
            samples=len(data),
            layout=plan.layout,
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
        batch = self.rig.one_evaluation_batch(self.plan.layout.local_batch)
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
