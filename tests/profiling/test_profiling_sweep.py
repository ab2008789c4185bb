"""The order and the time of blocks, with steps that take what a clock says; other tests start real workers."""

import contextlib
import random
from types import SimpleNamespace

import pytest

from tula_core.profiling import sweep as sweeping
from tula_core.profiling.scouts import Scouts
from tula_core.profiling.timing import SizeRun

SIZES = (8, 16, 32, 64)


class NoMeter:
    """A log of power where nothing can be read."""

    def __init__(self, context):
        self.window = lambda local_batch: contextlib.nullcontext()
        self.report = lambda: None


class Clock:
    """Stands for a rig on one process: each block takes its steps' time."""

    def __init__(self, seconds, step_s, noise=0.01):
        self.left, self.step_s, self.noise = seconds, step_s, noise
        self.random = random.Random(1)
        self.job = SimpleNamespace(seed=0)
        self.said = []
        self.context = SimpleNamespace(
            processes=1, broadcast=lambda value: value, emit=lambda kind, **data: self.said.append(kind)
        )

    def left_s(self):
        return self.left

    def steps(self, run, count):
        mean = self.step_s[run.local_batch]
        return [mean * max(0.1, 1 + self.noise * self.random.gauss(0, 1)) for _ in range(count)]

    def block(self, rig, run, steps, *, with_parts):
        taken = self.steps(run, steps + (sweeping._CLOCKED + 1 if with_parts else 1))
        self.left -= sum(taken)
        run.blocks.append(taken[:steps])


def run_rounds(monkeypatch, seconds, step_s, *, noise=0.01, rival=None):
    """Return the sweep after its rounds, whether it was settled, and the clock."""
    clock = Clock(seconds + 10.0, step_s, noise)
    monkeypatch.setattr(sweeping, "timed_block", clock.block)
    monkeypatch.setattr(sweeping, "PowerLog", NoMeter)
    monkeypatch.setattr(sweeping.Sweep, "_report", lambda self, run: None)
    weights = {str(size): 0.0 for size in SIZES}
    sweep = sweeping.Sweep(clock, {"log_weights": weights, "rival": rival})
    sweep.runs = [
        SizeRun(local_batch=size, feed=None, preliminary=clock.steps(SimpleNamespace(local_batch=size), 2))
        for size in SIZES
    ]
    return sweep, sweep.rounds(seconds), clock


CLEAR = {8: 0.04, 16: 0.03, 32: 0.01, 64: 0.05}
CLOSE = {8: 0.01, 16: 0.0101, 32: 0.05, 64: 0.05}


def test_a_clear_choice_is_settled_early_and_leaves_the_time(monkeypatch):
    sweep, settled, clock = run_rounds(monkeypatch, 100.0, CLEAR)
    assert settled and clock.left > 10.0 + 85.0
    assert [len(run.blocks) for run in sweep.runs] == [2, 2, 2, 1]


def test_the_time_of_a_close_choice_goes_to_those_that_may_win(monkeypatch):
    sweep, _, _ = run_rounds(monkeypatch, 100.0, CLOSE, noise=0.3)
    blocks = {run.local_batch: len(run.blocks) for run in sweep.runs}
    assert blocks[8] + blocks[16] > blocks[32] + blocks[64]


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 1.0, 3.0, 10.0])
def test_the_time_is_kept_and_what_it_did_not_suffice_for_is_unsettled(monkeypatch, seconds):
    sweep, settled, clock = run_rounds(monkeypatch, seconds, CLOSE, noise=0.3)
    assert clock.left >= 10.0 - 0.1  # a block is planned by an estimate, and steps scatter
    if seconds < 0.3:
        assert not settled and not all(run.blocks for run in sweep.runs)
    assert clock.said.count("round") == 1


def test_sizes_get_as_many_steps_as_each_other_where_time_is_short(monkeypatch):
    sweep, _, _ = run_rounds(monkeypatch, 5.0, CLEAR, rival=-9.0)
    first = [len(run.blocks[0]) for run in sweep.runs]
    assert max(first) <= min(first) + 2 and max(first) < 30
    assert sorted(run.order for run in sweep.runs) == list(range(len(SIZES)))


def test_the_same_measurements_lead_to_the_same_blocks(monkeypatch):
    counts = [[len(run.blocks) for run in run_rounds(monkeypatch, 20.0, CLOSE)[0].runs] for _ in range(2)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("sample_s", "looked_at"),
    [(0.001, [32, 64, 128]), (0.02, [8, 32]), (0.05, [8, 32]), (0.1, [32])],
)
def test_a_slow_network_is_looked_at_in_two_sizes_where_time_allows(monkeypatch, sample_s, looked_at):
    """A step at one size alone does not tell what a larger one takes."""
    clock = Clock(25.0, {})
    clock.base_bytes, clock.memory_limit_bytes, clock.machine_limit_bytes = 0, 10**9, 10**9
    clock.layout = lambda size: None

    def look(rig, run, after_first):
        run.preliminary = [sample_s * run.local_batch] * 2
        clock.left -= 7 * run.preliminary[0]

    monkeypatch.setattr(
        sweeping,
        "MemoryPhases",
        lambda rig: SimpleNamespace(
            end_first_step=None, end_training=lambda: None, peaks=lambda size: {"peak_bytes": 1, "first_peak_bytes": 1}
        ),
    )
    monkeypatch.setattr(sweeping, "first_look", look)
    monkeypatch.setattr(sweeping, "StepFeed", lambda *_: SimpleNamespace(full_steps=4))
    monkeypatch.setattr(sweeping, "PowerLog", NoMeter)
    scouts = Scouts(peaks=[(2, 1)], seconds=[4 * sample_s, 2 * sample_s])
    monkeypatch.setattr(sweeping, "send_scouts", lambda *_: scouts)
    monkeypatch.setattr(sweeping.Sweep, "_report", lambda self, run: None)
    monkeypatch.setattr(sweeping.Sweep, "_evaluate_batch", lambda self, run, phases: None)
    sweep = sweeping.Sweep(clock, {"sizes": [32, 64, 128], "smaller": [2, 4, 8, 16]})
    sweep.first_looks()
    assert [run.local_batch for run in sweep.runs] == looked_at
