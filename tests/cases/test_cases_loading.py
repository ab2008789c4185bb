"""Reports of a step time that leaves out what the steps wait for their data."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tula_core.profiling import sweep as sweep_module
from tula_core.profiling import timing as timing_module
from tula_core.profiling.collector import Collector
from tula_core.profiling.sweep import Sweep
from tula_core.profiling.timing import SizeRun, first_look, timed_block
from tula_core.progress import silent

WORKERS, BATCH_S, COMPUTE_S = 4, 0.16, 0.0005


class Loader:
    """Steps that take ``compute_s``, fed by workers that each make a batch in ``batch_s`` and two ahead."""

    def __init__(self, batch_s: float, compute_s: float, workers: int = WORKERS) -> None:
        self.workers, self.batch_s, self.compute_s = workers, batch_s, compute_s
        self.left_s, self.now_s, self.made = 1e9, 0.0, 0
        self.free_s: list[float] = []
        self.ready: list[float] = []
        context = SimpleNamespace(
            nodes=1, processes_per_node=1, processes=1, all_reduce_max=list, broadcast=float, emit=self.hear
        )
        self.rig: Any = SimpleNamespace(context=context, left_s=lambda: self.left_s, job=SimpleNamespace(seed=0))
        self.feed: Any = SimpleNamespace(workers=workers, pause=self.pause, making_s=batch_s)
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def hear(self, kind: str, **data: Any) -> None:
        self.heard.append((kind, data))

    def pause(self) -> None:
        self.free_s, self.ready, self.made = [], [], 0

    def _order(self) -> None:
        worker = self.made % self.workers
        self.free_s[worker] = max(self.free_s[worker], self.now_s) + self.batch_s
        self.ready.append(self.free_s[worker])
        self.made += 1

    def step(self) -> float:
        if not self.free_s:
            self.free_s = [self.now_s] * self.workers
            for _ in range(2 * self.workers):
                self._order()
        began_s = self.now_s
        self.now_s = max(self.now_s, self.ready.pop(0))
        self._order()
        self.now_s += self.compute_s
        self.left_s -= self.now_s - began_s
        return self.now_s - began_s

    def steps(self, rig: Any, feed: Any, count: int) -> list[float]:
        return [self.step() for _ in range(count)]

    def parts(self, rig: Any, feed: Any) -> dict[str, float]:
        self.steps(rig, feed, 4)
        return {"loader_s": 0.0, "compute_s": self.compute_s, "communication_s": 0.0, "optimizer_s": 0.0}

    def evaluate(self) -> None:
        """What comes after a first step gives the workers time to make their batches ahead."""
        self.now_s += 10.0


class NoMeter:
    """A log of power where nothing can be read."""

    def __init__(self, context: Any) -> None:
        self.window = lambda local_batch: contextlib.nullcontext()
        self.report = lambda: None


def look(monkeypatch: pytest.MonkeyPatch, loader: Loader) -> SizeRun:
    monkeypatch.setattr(timing_module, "plain_steps", loader.steps)
    monkeypatch.setattr(timing_module, "clocked_parts", loader.parts)
    monkeypatch.setattr(sweep_module, "PowerLog", NoMeter)
    run = SizeRun(local_batch=32, feed=loader.feed)
    first_look(loader.rig, run, loader.evaluate)
    return run


def steady_s(loader: Loader) -> float:
    loader.pause()
    durations: Iterator[float] = (loader.step() for _ in itertools.count())
    list(itertools.islice(durations, 100))
    return sum(itertools.islice(durations, 400)) / 400


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("compute_s", [0.0005, 0.03, 0.07, 0.5])
def test_a_step_takes_what_it_takes_in_a_run_whatever_lies_ready(
    monkeypatch: pytest.MonkeyPatch, compute_s: float, workers: int
) -> None:
    # Elsewhere: the first steps use up what the workers made ahead, and a run takes many times as long.
    loader = Loader(BATCH_S, compute_s, workers)
    run = look(monkeypatch, loader)
    sweep = Sweep(loader.rig, {})
    for _ in range(2):
        timed_block(loader.rig, run, sweep._steps_of_block(run, 30.0), with_parts=True)
    timing = run.timing(loader.rig, 0.0)
    assert timing.step_time_s == pytest.approx(steady_s(loader), rel=0.05)
    assert timing.loader_s == pytest.approx(max(0.0, timing.step_time_s - compute_s), abs=0.01 * timing.step_time_s)


def test_a_first_look_reckons_with_what_a_batch_takes_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: two batches that lay ready are timed, and a step takes less than a hundredth.
    run = look(monkeypatch, loader := Loader(BATCH_S, COMPUTE_S))
    timing = run.timing(loader.rig, 0.0)
    assert timing.step_time_s == run.estimate_s == pytest.approx(BATCH_S / WORKERS)
    assert timing.step_time_error_s >= 0.2 * timing.step_time_s
    assert timing.step_time_s == pytest.approx(steady_s(loader), rel=0.05)


def test_without_time_for_a_whole_round_nothing_less_is_timed_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    run = look(monkeypatch, loader := Loader(BATCH_S, COMPUTE_S))
    sweep = Sweep(loader.rig, {})
    sweep.runs, sweep.payload = [run], {"log_weights": {"32": 0.0}, "rival": None}
    assert sweep._steps_of_block(run, 10 * BATCH_S / WORKERS) == 0
    assert not sweep.rounds(0.1) and not run.blocks
    collector = Collector(silent, 60.0)
    for kind, data in loader.heard:
        if kind == "loading_untimed":
            collector.hear({"kind": kind, "at_s": 0.0, **data})
    assert "at a local batch of 32" in collector.warnings[0] and "probe.seconds" in collector.warnings[0]


def test_a_loader_that_seemed_to_keep_up_is_timed_anew_when_a_block_shows_that_it_does_not() -> None:
    # Elsewhere: other work of the machine made the clocked steps long, so that loading seemed to be hidden.
    run = SizeRun(local_batch=32, feed=Loader(0.04, 0.001).feed, preliminary=[0.1], workers=4, loading_s=0.01)
    run.keep_block([0.003] * 4)
    assert run.held_up and not run.blocks and run.estimate_s == 0.1
    run.keep_block([0.0, 0.0, 0.0, 0.04])
    assert run.step_time_s()[0] == pytest.approx(0.01)
