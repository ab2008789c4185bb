from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from power_fakes import FakeContext, source

from tula_core.engine.power import meter as metering
from tula_core.engine.power.meter import PowerMeter
from tula_core.engine.power.sources import EnergySource
from tula_core.engine.power.windows import RunMeter
from tula_core.profiling.collector import Collector
from tula_core.profiling.power import PowerLog
from tula_core.profiling.worlds import World
from tula_core.progress import silent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(metering.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(metering.PowerMeter, "start", lambda self: None)
    return now


def steady(clock: list[float], watts: Callable[[], float], covers: Any = "accelerators") -> EnergySource:
    joules, last = [0.0], [0.0]

    def read() -> float:
        joules[0] += watts() * (clock[0] - last[0])
        last[0] = clock[0]
        return joules[0]

    return EnergySource(name="the counter", covers=covers, kind="counter", read=read)


def heard(context: FakeContext) -> Collector:
    collector = Collector(silent, 60.0)
    collector.begin(World(nodes=1, processes_per_node=context.processes))
    for kind, data in context.events:
        collector.hear({"kind": kind, "at_s": 0.0, **data})
    return collector


def test_each_local_batch_has_its_mean_power_and_source(clock: list[float]) -> None:
    context, watts = FakeContext(processes_per_node=2), [0.0]
    log = PowerLog(context, RunMeter(context, PowerMeter([steady(clock, lambda: watts[0])])))  # type: ignore[arg-type]
    for size, drawn in ((16, 100.0), (64, 300.0), (16, 200.0)):
        watts[0] = drawn
        with log.window(size):
            clock[0] += 1.0
    log.report()
    power = heard(context).power
    assert {key[1]: use.node_w for key, use in power.items()} == {16: pytest.approx(150.0), 64: pytest.approx(300.0)}
    use = power[World(nodes=1, processes_per_node=2), 64]
    assert use.source == "the counter" and use.seconds == 1.0
    assert use.accelerator_w == pytest.approx(150.0) and use.counter_w == pytest.approx(150.0)
    assert use.integrated_w is None and use.limit_w is None


def test_windows_too_short_to_be_read_are_put_together(clock: list[float]) -> None:
    context = FakeContext()
    meter = RunMeter(context, PowerMeter([steady(clock, lambda: 80.0, covers="processors")]))  # type: ignore[arg-type]
    log = PowerLog(context, meter)  # type: ignore[arg-type]
    for size in (8, 16, 32):
        with log.window(size):
            clock[0] += 0.3
    log.report()
    (use,) = heard(context).power.values()
    assert (use.local_batch, use.accelerator_w) == (16, None)
    assert use.node_w == pytest.approx(80.0)


def test_without_a_meter_the_sweep_goes_on_and_only_accelerators_warn(clock: list[float]) -> None:
    for device, warned in (("cpu", False), ("cuda", True)):
        context = FakeContext()
        context.device = type("Device", (), {"type": device, "index": 0})()  # type: ignore[assignment]
        log = PowerLog(context, RunMeter(context, PowerMeter([], "energy is unavailable: no meter")))  # type: ignore[arg-type]
        with log.window(16):
            clock[0] += 1.0
        log.report()
        collector = heard(context)
        assert collector.power == {}
        assert collector.warnings == (["energy is unavailable: no meter"] if warned else [])


def test_a_disagreement_of_two_meters_is_a_warning(clock: list[float]) -> None:
    context = FakeContext()
    sources = [steady(clock, lambda: 100.0), source("samples", "power", [150.0])]
    log = PowerLog(context, RunMeter(context, PowerMeter(sources)))  # type: ignore[arg-type]
    with log.window(16):
        clock[0] += 2.0
    log.report()
    collector = heard(context)
    assert "two power meters disagree" in collector.warnings[0]
    (use,) = collector.power.values()
    assert use.disagreement == pytest.approx(0.5)
