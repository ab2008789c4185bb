"""Reports of energy that is wrong because one of the meters is, P57 and P58."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from power_fakes import FakeNvml, source
from train_helpers import hand_made_plan

from tula_core.engine.launch import LaunchResult, WorkerTask
from tula_core.engine.power.find import machine_meter
from tula_core.engine.power.meter import Energy, PowerMeter
from tula_core.engine.power.nvml import Nvml
from tula_core.engine.power.windows import plain
from tula_core.progress import Event
from tula_core.records.power import PowerUse
from tula_core.training import run as run_module
from tula_core.training.run import Attempt, run_attempt


def metered(counter: list[float], watts: float | None, seconds: float = 5.0) -> Energy:
    sources = [source("counter", "counter", counter)]
    if watts is not None:
        sources.append(source("samples", "power", [watts, watts]))
    meter = PowerMeter(sources)
    return meter.between(meter.mark(0.0), meter.mark(seconds))


def test_p57_a_counter_that_stands_still_is_said_and_not_used() -> None:
    # Elsewhere: the counter comes first, and a run draws no energy at all.
    energy = metered([1000.0, 1000.0], 65.4)
    assert (energy.total_j, energy.source) == (pytest.approx(327.0), "samples")
    assert "stands still and the samples are used" in str(energy.disagreement)
    use = PowerUse(
        nodes=1,
        processes_per_node=1,
        local_batch=8,
        seconds=5.0,
        node_w=65.4,
        source="samples",
        counter_w=0.0,
        integrated_w=65.4,
    )
    assert use.disagreement == 1.0


def test_p57_a_counter_that_stands_still_alone_makes_the_energy_unknown_and_not_nothing() -> None:
    assert metered([1000.0, 1000.0], None).total_j is None


def test_p57_a_counter_that_was_not_yet_updated_is_no_fault() -> None:
    energy = metered([1000.0, 1000.0], 65.4, seconds=0.1)
    assert (energy.total_j, energy.disagreement) == (0.0, None)


def test_p58_a_driver_without_an_energy_counter_is_read_by_its_power(monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: a function that an old driver lacks ends the run.
    library: Any = FakeNvml({"GPU-1": (100.0, 200.0)})
    old = type("Old", (), {n: getattr(library, n) for n in dir(library) if n.startswith("nvml") and "Energy" not in n})
    assert [found.kind for found in machine_meter(["GPU-1"], nvml=Nvml(old)).sources] == ["power"]


@pytest.mark.parametrize(("counter_j", "warned"), [(0.0, True), (187.0, True), (320.0, False)])
def test_p57_meters_that_disagree_in_training_are_said_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter_j: float, warned: bool
) -> None:
    # Elsewhere: they are compared while planning, and the bill of the run itself rests on either.
    energy = plain(Energy(seconds=5.0, total_j=327.0, source="the meter", counter_j=counter_j, integrated_j=327.0))
    figures = {"loss": 0.1, "learning_rate": 0.1, "images_per_s": 16.0, "epoch": 1.0, "energy": energy}

    def launch(task: WorkerTask, on_event: Any) -> LaunchResult:
        for samples in (48, 96):
            on_event({"kind": "progress", "samples": samples, "steps": samples // 16, **figures})
        result = {"samples": 96, "steps": 6, "energy": energy}
        return LaunchResult(result=result, failure=None, start_up_s=0.1, seconds=5.0)

    monkeypatch.setattr(run_module, "launch", launch)
    heard: list[Event] = []
    plan = hand_made_plan("plain")
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="run", number=1, folder=tmp_path, resume=False)
    outcome, error = run_attempt(attempt, heard.append, lambda samples, figures: None)
    assert error is None
    warnings = [event.message for event in heard if event.level == "warning"]
    assert len(warnings) == int(warned) and all("two power meters disagree" in text for text in warnings)
    assert ("two power meters disagree" in str(outcome.energy_source)) is warned
    assert str(outcome.energy_source).startswith("the meter")
