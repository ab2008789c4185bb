from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from power_fakes import FakeContext
from train_helpers import hand_made_plan

from tula_core.errors import InputError
from tula_core.training import metering
from tula_core.training.metering import check_power_limit, energy_source, with_energy
from tula_core.training.run import Attempt


def attempt(folder: Path, number: int = 1, **cluster: Any) -> Attempt:
    plan = hand_made_plan("plain")
    job = plan.job.model_copy(update={"cluster": plan.job.cluster.model_copy(update=cluster)})
    plan = dataclasses.replace(plan, job=job)
    return Attempt(plan=plan, row=plan.table[0], job_id="job", number=number, folder=folder, resume=number > 1)


def leave(folder: Path, number: int, seconds: float, joules: float | None) -> None:
    """Write what an attempt that was killed leaves behind."""
    place = folder / f"attempt-{number}"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    os.utime(place / "config.json", (1000.0, 1000.0))
    energy = None if joules is None else {"total_j": joules, "seconds": seconds, "source": "the counter"}
    event = {"kind": "progress", "at_s": 1000.0 + seconds, "samples": 1, "energy": energy}
    (place / "events.jsonl").write_text(json.dumps(event) + "\n")


def final(joules: float | None, seconds: float) -> dict[str, Any]:
    return {"energy": {"total_j": joules, "seconds": seconds, "source": "the counter"}}


def figures(seconds: float, cost: float | None = None) -> dict[str, float | None]:
    return {"time_to_train_s": seconds, "cost_usd": cost, "energy_j": None}


def test_the_start_is_taken_to_draw_the_mean_power(tmp_path: Path) -> None:
    done = with_energy(figures(10.0), attempt(tmp_path), final(800.0, 8.0))
    assert done["energy_j"] == pytest.approx(1000.0)
    assert energy_source(final(800.0, 8.0)) == "the counter"


def test_energy_of_all_attempts_counts(tmp_path: Path) -> None:
    leave(tmp_path, 1, seconds=20.0, joules=3000.0)
    done = with_energy(figures(30.0), attempt(tmp_path, number=2), final(1000.0, 10.0))
    assert done["energy_j"] == pytest.approx(4000.0)


@pytest.mark.parametrize(("joules", "seconds"), [(None, 10.0), (100.0, 2.0)])
def test_an_attempt_that_was_hardly_metered_makes_the_energy_unknown(
    tmp_path: Path, joules: float | None, seconds: float
) -> None:
    assert with_energy(figures(10.0), attempt(tmp_path), final(joules, seconds))["energy_j"] is None
    leave(tmp_path, 1, seconds=20.0, joules=None)
    assert with_energy(figures(30.0), attempt(tmp_path, number=2), final(900.0, 10.0))["energy_j"] is None
    assert energy_source({}) is None


def test_each_attempt_is_billed_by_itself(tmp_path: Path) -> None:
    leave(tmp_path, 1, seconds=20.0, joules=None)
    second = attempt(tmp_path, number=2, price_per_node_hour=3.6, billing_seconds=60)
    done = with_energy(figures(30.0, cost=60 * 3.6 / 3600), second, {})
    assert done["cost_usd"] == pytest.approx(2 * 60 * 3.6 / 3600)


def test_electricity_is_billed_where_energy_is_known_and_unknown_elsewhere(tmp_path: Path) -> None:
    own = attempt(tmp_path, electricity_usd_per_kwh=0.36)
    assert with_energy(figures(10.0), own, final(1e6, 10.0))["cost_usd"] == pytest.approx(0.1)
    assert with_energy(figures(10.0), own, {})["cost_usd"] is None
    stated = with_energy(figures(10.0), attempt(tmp_path, electricity_usd_per_kwh=0.36, power_watts=1e5), {})
    assert (stated["energy_j"], stated["cost_usd"]) == (None, pytest.approx(0.1))
    both = attempt(tmp_path, electricity_usd_per_kwh=0.36, price_per_node_hour=180.0)
    assert with_energy(figures(10.0, cost=0.5), both, final(1e6, 10.0))["cost_usd"] == pytest.approx(0.6)
    assert with_energy(figures(10.0, cost=0.5), both, {})["cost_usd"] is None


def test_a_power_limit_is_checked_and_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = FakeContext()
    assert check_power_limit(context, None) is None
    assert "could not be read" in (check_power_limit(context, 150.0) or "")
    monkeypatch.setattr(metering, "present_limit_w", lambda context: 300.0)
    assert check_power_limit(context, 300.0) is None
    with pytest.raises(InputError, match="sudo nvidia-smi --power-limit=150"):
        check_power_limit(context, 150.0)
