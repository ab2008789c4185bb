from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_fakes import FakeContext, FakeNvml, packages, source

from tula_core.engine.power.find import is_slice, machine_meter, present_limit_w
from tula_core.engine.power.meter import Energy, PowerMeter
from tula_core.engine.power.nvml import Nvml
from tula_core.engine.power.rapl import rapl_source
from tula_core.engine.power.sources import EnergySource, Tally
from tula_core.engine.power.windows import RunMeter, plain

watts = st.floats(0.0, 1000.0)


def window(meter: PowerMeter, seconds: float = 5.0) -> Energy:
    return meter.between(meter.mark(0.0), meter.mark(seconds))


def test_counter_and_samples_are_both_recorded_and_their_disagreement_is_said() -> None:
    # The counter says 187 J and samples of power say 327 J for the same five seconds.
    meter = PowerMeter(
        [source("counter", "counter", [1000.0, 1187.0]), source("samples", "power", [327.0 / 5, 327.0 / 5])]
    )
    energy = window(meter)
    assert (energy.counter_j, energy.integrated_j) == (187.0, pytest.approx(327.0))
    assert energy.total_j == 187.0 and energy.source == "counter"
    assert energy.disagreement is not None
    assert (
        "187 J" in energy.disagreement and "327 J" in energy.disagreement and "counter is used" in energy.disagreement
    )


def test_meters_that_agree_within_a_tenth_say_nothing() -> None:
    meter = PowerMeter([source("c", "counter", [0.0, 100.0]), source("p", "power", [21.9, 21.9])])
    assert window(meter).disagreement is None
    assert window(PowerMeter([source("c", "counter", [0.0, 100.0])])).disagreement is None


@given(watts, watts)
def test_the_trapezoid_is_exact_on_a_ramp_and_for_constant_power(first: float, last: float) -> None:
    tally = Tally(source("p", "power", [max(0.0, first + (last - first) * part / 10) for part in range(11)]))
    for part in range(11):
        tally.poll(part * 0.1)
    assert tally.joules == pytest.approx((first + last) / 2, abs=1e-9)


@given(st.lists(st.floats(0.001, 100), min_size=3, max_size=8))
def test_adjacent_windows_add_up(gains: list[float]) -> None:
    readings = [sum(gains[:end]) for end in range(len(gains) + 1)]
    meter = PowerMeter([source("c", "counter", readings)])
    marks = [meter.mark(float(second)) for second in range(len(readings))]
    parts = [meter.between(one, other).total_j for one, other in zip(marks, marks[1:], strict=False)]
    assert sum(part or 0.0 for part in parts) == pytest.approx(meter.between(marks[0], marks[-1]).total_j)


def test_samples_stand_in_where_the_counter_fails_and_parts_add_up() -> None:
    meter = PowerMeter(
        [
            source("counter", "counter", [5.0, OSError("gone")]),  # type: ignore[list-item]
            source("samples", "power", [100.0, 100.0]),
            source("packages", "counter", [0.0, 50.0], covers="processors"),
        ]
    )
    energy = window(meter)
    assert energy.total_j == pytest.approx(550.0) and energy.accelerators_j == pytest.approx(500.0)
    assert energy.counter_j is None and energy.source == "samples and packages"


def test_a_part_that_cannot_be_read_makes_the_total_unknown_and_not_small() -> None:
    meter = PowerMeter(
        [source("a", "counter", [0.0, OSError("gone")]), source("b", "counter", [0.0, 9.0], covers="processors")]  # type: ignore[list-item]
    )
    energy = window(meter)
    assert energy.total_j is None and energy.source == ""
    assert PowerMeter([]).between(PowerMeter([]).mark(0.0), PowerMeter([]).mark(1.0)).total_j is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_an_impossible_reading_gives_the_source_up(value: float) -> None:
    assert window(PowerMeter([source("c", "counter", [0.0, value])])).total_j is None


def test_a_counter_that_goes_backwards_is_given_up_unless_its_range_is_known() -> None:
    assert window(PowerMeter([source("c", "counter", [100.0, 40.0])])).total_j is None
    wraps = EnergySource(
        name="c", covers="processors", kind="counter", read=iter([100.0, 40.0]).__next__, range_j=120.0
    )
    assert window(PowerMeter([wraps])).total_j == pytest.approx(60.0)


def test_packages_are_counted_once_and_over_the_end_of_their_range(tmp_path: Path) -> None:
    set_to = packages(tmp_path, 100.0, 200.0)
    found, why_not = rapl_source(tmp_path)
    assert found is not None and why_not == "" and "2 processor packages" in found.name
    meter = PowerMeter([found])
    begin = meter.mark(0.0)
    set_to(0, 990.0)
    set_to(1, 210.0)
    meter.mark(1.0)
    set_to(0, 20.0)  # its range of 1000 J is over
    energy = meter.between(begin, meter.mark(2.0))
    assert energy.total_j == pytest.approx(890 + 30 + 10)


def test_packages_that_only_the_administrator_may_read_are_named(tmp_path: Path) -> None:
    packages(tmp_path, 1.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    found, why_not = rapl_source(tmp_path)
    assert found is None and "cannot be read" in why_not
    assert rapl_source(tmp_path / "none")[0] is None


def test_accelerators_are_metered_by_nvml_beside_the_processors(tmp_path: Path) -> None:
    packages(tmp_path, 1.0)
    nvml = Nvml(FakeNvml({"GPU-a": (100.0, 50.0), "GPU-b": (300.0, 70.0)}))
    meter = machine_meter(["GPU-a", "GPU-b"], nvml=nvml, powercap=tmp_path)
    assert [item.kind for item in meter.sources] == ["counter", "power", "counter"]
    assert "2 accelerators" in meter.sources[0].name
    assert [item.read() for item in meter.sources] == [400.0, 120.0, 1.0]


def test_an_accelerator_without_a_counter_is_sampled(tmp_path: Path) -> None:
    meter = machine_meter(["GPU-a"], nvml=Nvml(FakeNvml({"GPU-a": (None, 50.0)})), powercap=tmp_path)
    assert [item.kind for item in meter.sources] == ["power"]


@pytest.mark.parametrize(
    ("uuids", "visible", "match"),
    [
        (["GPU-a"], "MIG-5c89852c-d268-57ef-83ee-4a0ef7b8b0ab", "MIG"),
        (["MIG-5c89852c"], None, "MIG"),
        (["GPU-unknown"], "0", "unknown to NVML"),
        (["GPU-blind"], "GPU-blind", "neither energy nor power"),
    ],
)
def test_where_an_accelerator_cannot_be_metered_energy_is_unavailable(
    tmp_path: Path, uuids: list[str], visible: str | None, match: str
) -> None:
    # A device name that is no number must not stop anything.
    packages(tmp_path, 1.0)
    nvml = Nvml(FakeNvml({"GPU-a": (1.0, 1.0), "GPU-blind": (None, None)}))
    meter = machine_meter(uuids, visible=visible, nvml=nvml, powercap=tmp_path)
    assert meter.sources == () and "energy is unavailable" in meter.note and match in meter.note
    meter.start()
    assert window(meter).total_j is None
    meter.close()


def test_without_the_drivers_library_energy_is_unavailable(tmp_path: Path) -> None:
    meter = machine_meter(["GPU-a"], visible="0", powercap=tmp_path)
    assert meter.sources == () and "NVML is not available" in meter.note
    assert present_limit_w(FakeContext()) is None  # type: ignore[arg-type]
    assert not is_slice(None, [])


def test_the_limit_in_force_is_read_in_watts() -> None:
    nvml = Nvml(FakeNvml({"GPU-a": (1.0, 1.0)}, limit_w=275.0))
    assert nvml.limit_w(nvml.handle("GPU-a")) == 275.0


def test_the_meter_reads_by_itself_and_stops_when_it_is_closed() -> None:
    reads: list[int] = []

    def read() -> float:
        reads.append(1)
        return float(len(reads))

    meter = PowerMeter([EnergySource(name="c", covers="processors", kind="counter", read=read)])
    meter.start(period_s=0.01)
    until = time.monotonic() + 10
    while len(reads) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    meter.close()
    count = len(reads)
    assert count >= 5
    time.sleep(0.05)
    assert len(reads) == count


def test_a_run_without_a_meter_knows_no_energy_on_any_process(monkeypatch: Any) -> None:
    context: Any = FakeContext()
    blind = RunMeter(context, PowerMeter([]))
    assert not blind.available and blind.since(blind.mark()).total_j is None
    seeing = RunMeter(context, PowerMeter([source("c", "counter", [0.0, 5.0, 5.0, 5.0])]))
    begin = seeing.mark()
    assert seeing.available and seeing.since(begin).source == "c"
    seeing.close()
    monkeypatch.setenv("LOCAL_RANK", "1")
    other = RunMeter(context, PowerMeter([]))
    assert other.available and plain(other.since(other.mark()))["total_j"] == 0.0
