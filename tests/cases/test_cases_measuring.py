"""Public reports of measured speed that was wrong, P49 to P56 and P61."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases_devices import VirtualDevice
from factories import make_facts, make_job, make_profile, make_step

from tula_core.engine import hardware
from tula_core.engine import loop as loop_module
from tula_core.engine.cold_start import cold_excess_s, cold_steps
from tula_core.engine.loop import PartClock
from tula_core.job import Cluster
from tula_core.models.predictor import fit
from tula_core.profiling import timing as timing_module
from tula_core.profiling.collector import Collector
from tula_core.profiling.rig import StepFeed
from tula_core.profiling.statistics import robust_mean
from tula_core.profiling.timing import SizeRun, clocked_parts, plain_steps
from tula_core.profiling.worlds import ONE
from tula_core.progress import Event, silent
from tula_core.records import Candidate, StepTiming
from tula_core.search import make_plan
from tula_core.training.guard import Guard
from tula_core.training.step_times import StepTimes

STEP_S = 0.02


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> VirtualDevice:
    """Steps of 20 ms that are only handed over."""
    made = VirtualDevice()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    for module in (timing_module, loop_module):
        monkeypatch.setattr(module, "time", made.clock)

    def step(trainee: Any, batch: Any, rate: float, *, clock: PartClock | None = None, **rest: Any) -> None:
        made.launch(0.9 * STEP_S)
        if clock is not None:
            clock.mark("compute")
        made.launch(0.1 * STEP_S)
        if clock is not None:
            clock.mark("optimizer")

    monkeypatch.setattr(timing_module, "run_step", step)
    return made


def rig_on(device: VirtualDevice, kind: str = "cuda") -> Any:
    context = device.context(kind)
    return SimpleNamespace(context=context, trainee=SimpleNamespace(context=context))


FEED: Any = SimpleNamespace(next=lambda: None)


def test_p49_work_that_the_device_has_not_done_yet_is_waited_for(device: VirtualDevice) -> None:
    # Elsewhere: the clock is read before the device has finished, and a step seems ten times too fast.
    seen = plain_steps(rig_on(device), FEED, 5)
    assert seen == pytest.approx([STEP_S] * 5, rel=0.05)
    began = device.host_s
    device.launch(STEP_S)
    assert device.host_s - began < 0.1 * STEP_S, "a clock that does not wait sees next to nothing: the fake is a trap"


def test_p49_work_from_before_is_not_charged_to_the_first_step(device: VirtualDevice) -> None:
    device.launch(3.0)
    assert plain_steps(rig_on(device), FEED, 2) == pytest.approx([STEP_S] * 2, rel=0.05)


def test_p49_parts_of_a_step_are_waited_for_too(device: VirtualDevice) -> None:
    parts = clocked_parts(rig_on(device), FEED)
    assert parts["compute_s"] == pytest.approx(0.9 * STEP_S, rel=0.05)
    assert parts["optimizer_s"] == pytest.approx(0.1 * STEP_S, rel=0.05)


def timed(first_s: float, preliminary: list[float], *blocks: list[float]) -> StepTiming:
    run = SizeRun(local_batch=16, feed=FEED, first_step_s=first_s, preliminary=preliminary, blocks=list(blocks))
    return run.timing(rig_on(VirtualDevice(), "cpu"), 0.0)


def test_p50_a_cold_start_is_start_up_and_not_speed() -> None:
    # Elsewhere: the first slow steps enter the mean, and the reported speed halves at random.
    found = timed(5.0, [2.0, 0.1], [0.1] * 24, [0.1] * 23)
    assert found.step_time_s == pytest.approx(0.1, rel=0.05)
    assert found.first_step_s - found.step_time_s == pytest.approx(6.8, rel=0.01)


def test_p50_a_short_look_at_a_cold_process_is_not_taken_for_steady() -> None:
    found = timed(5.0, [2.0, 0.1])
    assert found.step_time_s == pytest.approx(0.1)
    assert found.first_step_s - found.step_time_s == pytest.approx(6.8, rel=0.01)


@pytest.mark.parametrize("durations", [[0.1] * 50, [0.12, *[0.1] * 49], [0.1, 0.1, 5.0, *[0.1] * 47]])
def test_p50_a_warm_process_has_no_cold_start(durations: list[float]) -> None:
    assert cold_steps(durations) == 0
    assert cold_excess_s(durations, 0.1) == 0.0


def test_p50_the_actual_step_time_of_a_run_leaves_a_cold_start_out_as_well() -> None:
    times = StepTimes()
    for seconds in (5.0, 2.0, *[0.1] * 48):
        times.add(seconds)
    assert times.mean_s == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(("steps", "expected"), [([], None), ([3.0], 3.0), ([3.0, 0.2], 0.2), ([3.0, 0.2, 0.4], 0.3)])
def test_p50_a_run_of_a_few_steps_has_a_step_time(steps: list[float], expected: float | None) -> None:
    times = StepTimes()
    for seconds in steps:
        times.add(seconds)
    assert times.mean_s == (None if expected is None else pytest.approx(expected))


def test_p51_odd_shapes_never_reach_the_timed_steps() -> None:
    # Elsewhere: one odd-shaped batch per epoch is tuned anew, and its seconds tilt the slope over batch sizes.
    from tiny_workloads import workload

    from tula_core.engine.batches import BatchStream, Layout

    def stream(layout: Layout, *, whole_steps: bool, clock: None) -> BatchStream:
        train = workload(samples=203).train_set()
        return BatchStream(train, samples=203, layout=layout, rank=0, seed=0, whole_steps=whole_steps)

    rig: Any = SimpleNamespace(stream=stream, samples=203, job=make_job())
    feed = StepFeed(rig, Layout(processes=1, local_batch=64))
    assert {feed.next().sizes for _ in range(10)} == {(64,)}


def first_steps(extra_s: float) -> tuple[StepTiming, ...]:
    """Three sizes in one process that took 2 s to begin; each new shape costs ``extra_s``."""
    steps = [make_step(local_batch=size) for size in (16, 64, 256)]
    found = [dataclasses.replace(step, first_step_s=step.step_time_s + 2.0 + extra_s) for step in steps]
    return (dataclasses.replace(found[0], first_step_s=steps[0].step_time_s + 2.0), *found[1:])


def total_s(samples: int, extra_s: float, epochs: int) -> float:
    profile = make_profile(facts=make_facts(train_samples=samples), steps=first_steps(extra_s))
    recipe = make_job().recipe.model_copy(update={"epochs": epochs})
    [row] = fit(profile, make_job(recipe=recipe, target=None)).forecast([BATCH_64])
    assert row["time_to_train_s"].value is not None
    return row["time_to_train_s"].value


BATCH_64 = Candidate(nodes=1, processes_per_node=1, local_batch=64)


@pytest.mark.parametrize("epochs", [1, 5])
def test_p51_the_first_odd_shape_is_charged_once_and_not_to_the_steps(epochs: int) -> None:
    def charged(samples: int) -> float:
        return total_s(samples, 3.0, epochs) - total_s(samples, 0.0, epochs)

    assert charged(6400) == pytest.approx(3.0, abs=0.1), "the shape of a full step"
    assert charged(6401) == pytest.approx(6.0, abs=0.1), "and that of the tail"


def compiled(first_s: float) -> Any:
    steps = tuple(dataclasses.replace(make_step(local_batch=b), first_step_s=first_s) for b in (16, 64, 256))
    return make_profile(steps=steps)


def test_p52_compiling_is_a_fixed_cost_and_a_short_run_is_told_so() -> None:
    # Elsewhere: the first epoch of a compiled network is a hundred times slower, and the forecast scales that up.
    slow, quick = (fit(compiled(first_s), make_job(target=None)) for first_s in (60.1, 0.01))
    [with_compile], [without] = (predictor.forecast([BATCH_64]) for predictor in (slow, quick))
    times = [row["time_to_train_s"].value for row in (with_compile, without)]
    assert times[0] - times[1] == pytest.approx(60.1, rel=0.02)  # type: ignore[operator]
    assert with_compile["step_time_s"].value == pytest.approx(without["step_time_s"].value, rel=1e-3)
    said = " ".join(slow.assumptions)
    assert "the first step takes up to 60.1 s more than a steady one" in said
    assert "a shorter run is mostly start-up" in said
    assert "mostly start-up" not in " ".join(quick.assumptions)


def test_p53_a_rate_is_all_work_over_all_time() -> None:
    # Elsewhere: rates are averaged, and 100 items in 100, 1, 50 and 1 s are called 50.75 per second.
    durations = [100.0, 1.0, 50.0, 1.0]
    assert 100 / robust_mean(durations) == pytest.approx(2.63, abs=0.005)
    heard: list[Event] = []
    collector = Collector(heard.append, 60.0)
    collector.begin(ONE)
    step = dataclasses.asdict(dataclasses.replace(make_step(local_batch=100), step_time_s=robust_mean(durations)))
    collector.hear({"kind": "step", "at_s": 0.0, **step})
    assert heard[-1].data["images_per_s"] == pytest.approx(2.63, abs=0.005)


def guard_on(device: VirtualDevice, monkeypatch: pytest.MonkeyPatch) -> Guard:
    from tula_core.training import guard as module

    monkeypatch.setattr(module, "time", device.clock)
    context: Any = SimpleNamespace(device=torch.device("cpu"), stop_signal=None, rank=0, all_reduce_sum=list)
    return Guard(context, None)


def test_p53_a_window_of_uneven_steps_has_the_rate_of_all_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    device = VirtualDevice()
    guard = guard_on(device, monkeypatch)
    for seconds in (100.0, 1.0, 50.0, 1.0):
        device.host_s += seconds
        guard.add([torch.zeros(())], [100])
    assert guard.check().samples_per_s == pytest.approx(2.63, abs=0.005)


def test_p54_what_is_between_the_steps_is_not_in_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: 5 s of evaluation per 10 s of training make the reported throughput a third too low.
    device = VirtualDevice()
    guard = guard_on(device, monkeypatch)
    rates = []
    for _ in range(3):
        device.host_s += 10.0
        guard.add([torch.zeros(())], [1000])
        rates.append(guard.check().samples_per_s)
        device.host_s += 5.0  # an evaluation, a checkpoint
        guard.go_on()
    assert rates == pytest.approx([100.0] * 3)


def test_p54_the_total_holds_evaluations_and_checkpoints() -> None:
    from tula_core.records import EvaluationTiming

    slow = EvaluationTiming(nodes=1, processes_per_node=1, samples=5_000, seconds=5.0)
    job = make_job(target=None)
    [with_them] = fit(make_profile(evaluation=(slow,)), job).forecast([BATCH_64])
    [without] = fit(make_profile(evaluation=(dataclasses.replace(slow, seconds=1e-6),)), job).forecast([BATCH_64])
    assert with_them["step_time_s"] == without["step_time_s"]
    difference = with_them["time_to_train_s"].value - without["time_to_train_s"].value  # type: ignore[operator]
    assert difference == pytest.approx(5.0 * job.recipe.epochs, rel=0.05)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_p55_seconds_stay_seconds_whatever_their_size(factor: float) -> None:
    # Elsewhere: a tuner compared milliseconds with seconds and ranked the candidates wrongly.
    steps = tuple(
        dataclasses.replace(step, **{name: factor * getattr(step, name) for name in TIMES})
        for step in make_profile().steps
        if step.processes_per_node == 1
    )
    rows = fit(make_profile(steps=steps), make_job(target=None)).forecast(
        [Candidate(nodes=1, processes_per_node=1, local_batch=step.local_batch) for step in steps]
    )
    assert [row["step_time_s"].value for row in rows] == pytest.approx([s.step_time_s for s in steps], rel=0.05)


TIMES = [name for name in StepTiming.__slots__ if name.endswith("_s")]


@pytest.mark.parametrize(("step_time_s", "said"), [(0.05, False), (5e-5, True)])
def test_p55_a_step_faster_than_any_machine_is_spoken_of(step_time_s: float, said: bool) -> None:
    facts = make_facts(parameters=25_000_000)
    share = dataclasses.replace(make_step(local_batch=256), step_time_s=step_time_s)
    found = fit(make_profile(facts=facts, steps=(share,)), make_job()).assumptions
    assert ("is more than such a machine does" in " ".join(found)) is said


@pytest.mark.parametrize("tflops", [0.02, {"fp32": 0.02}, None])
def test_p55_an_impossible_time_is_not_used_as_measured(tflops: Any) -> None:
    # Elsewhere: a step ten times faster than the card can be is chosen, and the run takes ten times as long.
    job = make_job(cluster=Cluster(processes_per_node=1, device_tflops=tflops))
    slow = [dataclasses.replace(make_step(local_batch=size), step_time_s=0.1) for size in (16, 32, 64, 128)]
    seconds = 6.0 * 1_000_000 * 64 / 6e10  # three times the card's peak, and no more than other machines do
    steps = (*slow[:2], dataclasses.replace(slow[2], step_time_s=seconds), slow[3])
    profile = make_profile(facts=make_facts(parameters=1_000_000), steps=steps)
    predictor = fit(profile, job)
    [row] = predictor.forecast([Candidate(nodes=1, processes_per_node=1, local_batch=64)])
    said = "1 of 4 timings are not used as measured" in " ".join(predictor.assumptions)
    assert said is (tflops is not None) and row.measured is not said
    assert row["step_time_s"].value is not None and (row["step_time_s"].value > 5 * seconds) is said


def test_p55_where_every_time_is_impossible_nothing_counts_as_measured() -> None:
    share = dataclasses.replace(make_step(local_batch=64), step_time_s=1e-7)
    job = make_job(cluster=Cluster(processes_per_node=1, device_tflops=0.02))
    predictor = fit(make_profile(facts=make_facts(parameters=1_000_000), steps=(share,)), job)
    [row] = predictor.forecast([Candidate(nodes=1, processes_per_node=1, local_batch=64)])
    assert not row.measured and row["step_time_s"].value >= 0.5 * 6e6 * 64 / 3e10  # type: ignore[operator]
    assert "1 of 1 timings are not used" in " ".join(predictor.assumptions)


def test_p56_a_dip_in_throughput_is_kept_and_not_chosen() -> None:
    # Elsewhere: a curve forced to rise with the batch size hides the size that is slow on this machine.
    rates = {16: 100.0, 32: 96.0, 64: 130.0}
    steps = tuple(
        dataclasses.replace(
            make_step(local_batch=size),
            **{"step_time_s": size / rate, "step_time_median_s": size / rate, "compute_s": size / rate},
            step_time_error_s=0.002 * size / rate,
        )
        for size, rate in rates.items()
    )
    profile = make_profile(steps=steps, facts=make_facts(train_samples=2000))
    job = make_job(cluster=Cluster(nodes=1, processes_per_node=1), recipe=make_job().recipe, target=None)
    predictor = fit(profile, job)
    rows = predictor.forecast([Candidate(nodes=1, processes_per_node=1, local_batch=size) for size in rates])
    forecast = [size / row["step_time_s"].value for size, row in zip(rates, rows, strict=True)]  # type: ignore[operator]
    assert forecast[1] < forecast[0] < forecast[2]
    chosen = make_plan(profile, job, predictor, mitigation=("linear-lr",), listener=silent).choice
    assert chosen is not None
    assert chosen.candidate.global_batch != 32


def test_p61_the_slowest_rank_sets_the_pace(device: VirtualDevice) -> None:
    # Elsewhere: a card at half the speed is averaged with the fast one, though every step waits for it.
    context = device.context("cuda", others_s=lambda own: [2 * value for value in own])
    rig: Any = SimpleNamespace(context=context, trainee=SimpleNamespace(context=context))
    assert plain_steps(rig, FEED, 3) == pytest.approx([2 * STEP_S] * 3, rel=0.05)


def test_p61_the_smallest_of_unlike_accelerators_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [("Large", 80 * 2**30), ("Small", 16 * 2**30)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: cards[index][0])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=cards[index][1])
    )
    found = hardware.inspect_hardware(Cluster())
    assert found.device_memory_bytes == 16 * 2**30
    assert found.device_name == "Large + Small"
    assert math.isfinite(found.memory_bytes)
