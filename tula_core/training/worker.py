"""The training run inside a worker process: steps, evaluations, checkpoints, a clean end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tula_core.engine.assemble import Trainee, assemble
from tula_core.engine.batches import BatchStream, Layout, Step, size_of
from tula_core.engine.checkpoint import is_ruined, load_checkpoint, peek_progress, save_checkpoint, take_over
from tula_core.engine.context import WorkerContext
from tula_core.engine.data_parallel import settle_buckets
from tula_core.engine.evaluate import evaluate, evaluation_batch, first_input_values
from tula_core.engine.hardware import inspect_hardware
from tula_core.engine.loop import NO_SEEDS, StepSeeds, run_step
from tula_core.engine.method_needs import fitted_options
from tula_core.engine.moments import StepMoments
from tula_core.engine.peak_memory import peak_bytes, reset_peak
from tula_core.engine.power.windows import RunMeter, plain
from tula_core.errors import DivergedError, StoppedError
from tula_core.job import Job, Target
from tula_core.mitigations import make
from tula_core.mitigations.rates.plan import LearningRate
from tula_core.records import CurvePoint
from tula_core.seeding import derive_seed, fold
from tula_core.training.decisions import FILE_NAME, DecisionLog
from tula_core.training.fallback.watch import Watch, drop_good, fall_report, keep_good, plain_number
from tula_core.training.guard import MOST_REDUCTIONS, Guard, Verdict
from tula_core.training.metering import check_power_limit
from tula_core.training.rate import REDUCTION, RunRate
from tula_core.training.same_data import require_same_data
from tula_core.training.setting import setting_of
from tula_core.training.sole_writer import sole_writer
from tula_core.training.stages import LayoutPlan, layout_for, stage_of
from tula_core.training.state import Progress
from tula_core.training.step_times import StepTimes
from tula_core.workloads import Workload
from tula_core.workloads.load import load_workload


class Run:
    """One attempt on one process."""

    def __init__(self, context: WorkerContext, payload: dict[str, Any]) -> None:
        self.context = context
        self.job = Job.from_mapping(payload["job"])
        self.workload: Workload = load_workload(self.job)
        self.samples = size_of(self.workload.train_set())
        require_same_data(context, self.workload, self.samples, payload)
        self.most = Layout(
            processes=context.processes, local_batch=payload["local_batch"], accumulation=payload["accumulation"]
        )
        recipe = self.job.recipe
        self.total_samples = recipe.epochs * self.samples
        self.until = min(self.total_samples, payload.get("until_samples") or self.total_samples)
        names = payload["mitigation"]
        options = fitted_options(names, self.job.mitigation_options, self.workload)
        setting = setting_of(self.job, context, self.most, self.samples, payload.get("global_batch"))
        self.methods = make(names, setting, options)
        self.trainee: Trainee = assemble(self.workload, recipe, context, seed=self.job.seed, methods=self.methods)
        self.moments = StepMoments(self.trainee) if self.methods.need_moments else None
        self.plan = self._layout_plan(names, payload.get("stages"))
        self.layout = self.plan.at(0)
        self.stream = self._stream(self.layout)
        planned = LearningRate.plan(recipe, setting.global_batch, names, self.total_samples, options)
        self.rate = RunRate(planned, self.methods, names)
        self.step_seed = derive_seed(self.job.seed, "step")
        self.common_seed = derive_seed(self.job.seed, "common step")
        self.checkpoint = Path(payload["checkpoint"])
        decisions = self.checkpoint.with_name(FILE_NAME) if context.rank == 0 else None
        self.decisions = DecisionLog(decisions)
        self.progress = Progress()
        self.watch = Watch.of(
            payload,
            higher_is_better=self.workload.metric.higher_is_better,
            warmup_epochs=self.rate.warmup_samples / self.samples,
            epochs=recipe.epochs,
            most_reductions=MOST_REDUCTIONS,
        )
        self.given_up: dict[str, Any] | None = None
        self.method = int(payload.get("method", 0))
        self.taken_over: dict[str, Any] = payload.get("taken_over") or {}
        self.times = StepTimes(row=payload.get("row", ""))
        self.eval_batch = evaluation_batch(payload["local_batch"], first_input_values(self.workload))
        self.guard = Guard(context, None)
        self.limit_warning = check_power_limit(context, payload.get("power_limit_w"))
        self.meter = RunMeter(context)
        self._metered_from = self.meter.mark()
        self._step_rate = planned.peak
        self._attempt_began = self._step_began = time.perf_counter()

    def _layout_plan(self, names: Sequence[str], stages: Sequence[Mapping[str, Any]] | None) -> LayoutPlan:
        """Return the layouts of the run: the plan's stages, or one, the reference batch where a method grows it."""
        if stages:
            return LayoutPlan.of(stages, self.context.processes)
        if "adaptive-batch" in names:
            return LayoutPlan.single(self._layout_for(self.job.recipe.batch_size))
        return LayoutPlan.single(self.most)

    def _layout_for(self, batch: int) -> Layout:
        return layout_for(min(batch, self.most.global_batch), self.context.processes, self.most.local_batch)

    def _stream(self, layout: Layout) -> BatchStream:
        return BatchStream(
            self.workload.train_set(),
            samples=self.samples,
            layout=replace(layout, shares=self.methods.shares),
            rank=self.context.rank,
            seed=self.job.seed,
            workers=self.job.recipe.loader_workers,
            collate=self.workload.collate,
            pin_memory=self.context.device.type == "cuda",
        )

    def begin(self, resume: bool) -> None:
        """Take up the checkpoint, or write the one that a divergence in the first steps goes back to."""
        if resume and self.checkpoint.exists():
            self._take_up()
            self.context.emit("resumed", **asdict(self.progress))
        else:
            self._save()
            self._link_good()
        self.times.begin(self.progress)
        settle_buckets(self.trainee.module)
        self._attempt_began = time.perf_counter() - self.progress.elapsed_s
        reset_peak(self.context.device)
        self.context.emit(
            "ready",
            peak_learning_rate=self.rate.peak(self.progress),
            rate=self.rate.facts(),
            steps_per_epoch=self.stream.steps_per_epoch,
            device=self.context.device.type,
            hardware=inspect_hardware(self.job.cluster).fingerprint,
            limit_warning=self.limit_warning,
        )

    def _take_up(self) -> None:
        """Go on from the checkpoint; one of the methods before gives its weights to those in force."""
        if not self.taken_over or peek_progress(self.checkpoint)["method"] == self.method:
            self._go_back()
            self._link_good()  # a kill may have come between the two
            self._hold()
            return
        progress = take_over(self.trainee, Path(self.taken_over["checkpoint"]))
        self.progress = Progress(**progress)
        self.progress.begin_methods(self.method)
        self.context.barrier()  # until every process has read what is now written anew
        self.decisions.cut(self.progress.samples)
        self.decisions.note(self.progress.samples, self.taken_over["note"])
        self._save()
        if self.context.rank == 0:
            drop_good(self.checkpoint)

    def go(self) -> dict[str, Any]:
        """Train to the target, the last epoch or where others take over; return the result of rank 0."""
        self._step_began = time.perf_counter()
        while not self._finished:
            self.guard = Guard(self.context, self.progress.initial_loss)
            self._enter_stage()
            end = self.plan.end(self.progress.samples)
            for step in self.stream.from_samples(self.progress.samples):
                if not self._take(step) or self._finished or self.progress.samples >= end or self._grows(step):
                    break
                del step  # its batches make room for the next ones
        self._save()
        return {
            **asdict(self.progress),
            "given_up": self.given_up,
            "learning_rate": self.rate.peak(self.progress),
            "step_time_s": self.times.mean_s,
            "energy": self._energy(),
            "memory_bytes": int(self.context.all_reduce_max([float(peak_bytes(self.context.device))])[0]),
        }

    def _enter_stage(self) -> None:
        """Take up the layout that is in force now."""
        if self.progress.batch is not None:
            self.plan = LayoutPlan.single(self._layout_for(self.progress.batch))
        layout = self.plan.at(self.progress.samples)
        stage = stage_of(self.context, layout, self.progress.samples)
        if self.progress.enter(stage):
            self.context.emit("layout", **stage)
        if layout == self.layout:
            return
        self.layout, self.stream = layout, self._stream(layout)
        self.context.emit("stage", samples=self.progress.samples, **asdict(layout))

    def _grows(self, step: Step) -> bool:
        """Ask the methods for the batch to go on with, where an epoch has ended."""
        if not step.ends_epoch:
            return False
        current = self.layout.global_batch
        batch = self.methods.next_batch(current)
        if batch == current:
            return False
        self.progress.batch = batch
        return True

    @property
    def _finished(self) -> bool:
        return self.given_up is not None or self.progress.target_reached or self.progress.samples >= self.until

    def _take(self, step: Step) -> bool:
        """Take one step and what follows from it; False when the run went back to a checkpoint."""
        began = self._step_began
        seed = fold(self.step_seed, step.samples_before, self.context.rank)
        torch.default_generator.manual_seed(seed)
        if self.context.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        position = step.samples_before - self.progress.skipped_samples
        self._step_rate = self.rate.at(position, self.progress)
        seeds = NO_SEEDS
        if self.methods.named:
            seeds = StepSeeds(own=seed, common=fold(self.common_seed, step.samples_before))
        moments = self.moments.next(step) if self.moments is not None else None
        losses, updated = run_step(self.trainee, step, self._step_rate, seeds=seeds, moments=moments)
        self.guard.add(losses, step.sizes)
        self.progress.samples = step.samples_after
        self.progress.steps += updated
        self.progress.skipped_samples += 0 if updated else step.global_samples
        if updated and self.methods.named:
            self.methods.after_step(self.trainee.network, step.global_samples, step.samples_after)
            self.decisions.add(step.samples_after, self.methods.decided())
        verdict = self.guard.check() if self.guard.due or step.ends_epoch else None
        self._time(began)
        went_on = verdict is None or self._obey(verdict, step)
        if verdict is not None:
            self.guard.go_on()
        self._step_began = time.perf_counter()
        return went_on

    def _time(self, began: float) -> None:
        if self.times.early_yet:
            self.context.synchronise()
        self.times.add(time.perf_counter() - began)

    def _obey(self, verdict: Verdict, step: Step) -> bool:
        looks_on = step.ends_epoch or verdict.stop or verdict.checkpoint_due
        if not verdict.diverged and looks_on and is_ruined(self.trainee):
            # The last update did it, so no loss shows it yet; such weights are neither to be judged nor kept.
            verdict = replace(verdict, diverged=True, loss=math.nan)
        if verdict.diverged:
            self._reduce(verdict)
            return False
        self.progress.initial_loss = self.guard.initial_loss
        self.progress.train_loss = verdict.loss
        self.progress.elapsed_s = time.perf_counter() - self._attempt_began
        self.methods.heard(verdict.loss, self.progress.samples)
        self.decisions.flush()
        self._report(verdict)
        if step.ends_epoch:
            self._evaluate()
        if verdict.stop and self.methods.at_rest:
            self._save()
            signal_number = self.context.stop_signal or int(signal.SIGTERM)
            raise StoppedError(
                f"stopped by signal {signal_number} after {self.progress.samples} samples", signal_number
            )
        if verdict.checkpoint_due and self.methods.at_rest and not self._finished:
            self._save()
        return True

    def _report(self, verdict: Verdict) -> None:
        self.context.emit(
            "progress",
            samples=self.progress.samples,
            steps=self.progress.steps,
            epoch=self.progress.samples / self.samples,
            loss=verdict.loss,
            learning_rate=self._step_rate,
            peak_learning_rate=self.rate.peak(self.progress),
            images_per_s=verdict.samples_per_s,
            elapsed_s=self.progress.elapsed_s,
            energy=self._energy(),
        )

    def _energy(self) -> dict[str, float | str | None] | None:
        return plain(self.meter.since(self._metered_from)) if self.meter.available else None

    def _evaluate(self) -> None:
        with self.methods.evaluating(self.trainee.network, self._statistics_batches):
            result = evaluate(self.trainee, self.eval_batch)
        if result.batch < self.eval_batch:
            self.context.emit("evaluation_reduced", asked=self.eval_batch, batch=result.batch)
            self.eval_batch = result.batch
        point = CurvePoint(
            samples=self.progress.samples,
            epochs=self.progress.samples / self.samples,
            steps=self.progress.steps,
            learning_rate=self._step_rate,
            train_loss=self.progress.train_loss,
            metric=result.metric,
            elapsed_s=time.perf_counter() - self._attempt_began,
        )
        self.progress.curve.append(asdict(point))
        target = self.job.target
        if isinstance(target, Target):
            higher = self.workload.metric.higher_is_better
            self.progress.target_reached = result.metric >= target.value if higher else result.metric <= target.value
        self.context.emit("evaluation", seconds=result.seconds, **asdict(point))
        if not self._finished and self.watch.is_good(self.progress.curve):
            self._keep_good()
        self._hold()

    def _hold(self) -> None:
        """Hold the evaluations against what was expected of them; the methods are given up where others are left."""
        fall = self.watch.fall(self.progress)
        if fall is not None and self.watch.gives_up:
            self.given_up = fall_report(fall, self.progress.samples)
        elif fall is not None and fall.index == len(self.progress.curve) - 1:
            self.context.emit("fell", **fall_report(fall, self.progress.samples))

    def _keep_good(self) -> None:
        """Keep these weights to go on from, should the methods prove wrong."""
        if self.watch.keeps_good and self.methods.at_rest:
            self.progress.good_samples = self.progress.samples
            self._save()

    def _link_good(self) -> None:
        current = self.progress.good_samples == self.progress.samples
        if self.watch.keeps_good and current and self.context.rank == 0:
            keep_good(self.checkpoint)

    def _statistics_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield training batches on the device, always the same ones, for statistics of averaged weights."""
        stream = self._stream(self.most)
        for step in stream.from_samples(0):
            yield from (self.trainee.to_device(batch) for batch in step.micro_batches)
            if step.ends_epoch:
                return

    def _reduce(self, verdict: Verdict) -> None:
        """Go back to the last checkpoint with a lower rate, and say so."""
        diverged_at, old = self.progress.samples, self.rate.peak(self.progress)
        reductions = self.progress.reductions + 1
        if reductions > self.watch.most_reductions and not self.watch.gives_up:
            raise DivergedError(
                f"training: the loss became {verdict.loss:.3g} after {diverged_at} samples, at a learning rate of "
                f"{old:.3g} after {MOST_REDUCTIONS} reductions. Lower recipe.learning_rate or check the data."
            )
        self._go_back()
        if reductions > self.watch.most_reductions:
            self.given_up = {
                "cause": "diverged",
                "loss": plain_number(verdict.loss),
                "samples": diverged_at,
                "rate": old,
            }
            return
        self.progress.reductions, self.progress.highest_rate = reductions, 0.0
        self.rate.reduce(self.progress.reductions)
        self._save()  # a resumed run must not try the higher rate again
        self.context.emit(
            "diverged",
            loss=verdict.loss,
            samples=diverged_at,
            back_to_samples=self.progress.samples,
            old_learning_rate=old,
            new_learning_rate=old * REDUCTION,
        )

    def _go_back(self) -> None:
        self.progress = Progress(**load_checkpoint(self.trainee, self.checkpoint))
        self.decisions.cut(self.progress.samples)
        if self.moments is not None:
            self.moments.restore(self.progress.measured_steps)
        self.rate.reduce(self.progress.reductions)

    def _save(self) -> None:
        if self.given_up is not None and not self.methods.at_rest:
            return  # the checkpoint before leads here again
        began = time.perf_counter()
        self.times.note(self.progress)
        self.progress.measured_steps = self.moments.state() if self.moments is not None else 0
        save_checkpoint(self.trainee, self.checkpoint, asdict(self.progress))
        self._link_good()
        self.guard.saved(time.perf_counter() - began)


def run_in_worker(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Entry of the train task.

    ``payload``: ``job`` (resolved), ``row`` (a name of its own), ``local_batch``, ``accumulation``, ``mitigation``,
    ``checkpoint`` (path), ``resume``, ``train_samples``, ``sample_shape`` and ``data_sample`` (of the plan; the last
    two may be None); where the layout changes on the way also ``stages`` (each with ``from_samples``, ``local_batch``,
    ``accumulation``), ``until_samples`` (where other processes take over, None for the end) and ``global_batch`` (of
    the last stage). Where the methods are watched ``expected`` (entries of epochs, low, value, high) and ``gives_up``;
    where others were dropped for them ``method`` (how often) and ``taken_over`` (``checkpoint``, ``note``).
    """
    with sole_writer(context, Path(payload["checkpoint"])):
        run = Run(context, payload)
        run.begin(payload["resume"])
        return run.go()
