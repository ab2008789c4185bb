from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.models.hardware.fleet import FleetRuns, fit_fleet, fleet_time_s
from tula_core.models.hardware.fleet_priors import FleetPriors, load_fleet_priors

PRIORS = load_fleet_priors()


def runs(*rows: tuple[str, str, int, int, float], rough: bool = False) -> FleetRuns:
    """Configurations of (accelerator, family, nodes, accelerators, local batch)."""
    accelerator, family, nodes, accelerators, local_batch = zip(*rows, strict=True)
    return FleetRuns(
        accelerator=np.array(accelerator),
        family=np.array(family),
        nodes=np.array(nodes, dtype=float),
        accelerators=np.array(accelerators, dtype=float),
        local_batch=np.array(local_batch, dtype=float),
        rough=np.full(len(rows), rough),
    )


def truth(given_runs: FleetRuns, sample_s: float = 1e-3, half: float = 12.0) -> Any:
    latent = np.tile([[np.log(sample_s)], [np.log(half)], [np.log(0.05)], [0.05]], (1, len(given_runs.nodes)))
    return fleet_time_s(given_runs.local_batch, given_runs.nodes, latent)


def ratio(predicted: Any, actual: Any) -> Any:
    return np.abs(np.log(predicted / actual))


def test_the_law_is_affine_in_the_batch_and_rises_with_the_nodes() -> None:
    latent = np.log([[1e-3] * 3, [10.0] * 3, [0.1] * 3, [1.0] * 3])
    one, two, three = fleet_time_s(np.array([10.0, 20.0, 30.0]), np.ones(3), latent)
    assert three - two == pytest.approx(two - one)
    assert one == pytest.approx(1e-3 * 20)
    rising = fleet_time_s(np.full(3, 10.0), np.array([1.0, 2.0, 16.0]), latent)
    assert (np.diff(rising) > 0).all()


def test_other_families_teach_how_time_bends() -> None:
    known = runs(
        *[("a", f"f{i}", nodes, 8 * nodes, batch) for i in range(5) for nodes, batch in ((1, 256), (8, 32), (64, 8))],
        ("a", "mine", 1, 8, 256),
    )
    times = truth(known)
    times[-1] *= 1.4  # this family is slower
    asked = runs(("a", "mine", 64, 512, 8.0))
    shared, shared_sd = fit_fleet(known, times, PRIORS).predict(asked)
    alone, alone_sd = fit_fleet(runs(("a", "mine", 1, 8, 256)), times[-1:], PRIORS).predict(asked)
    assert ratio(shared, 1.4 * truth(asked)) < 0.06
    assert shared_sd < alone_sd
    assert ratio(alone, 1.4 * truth(asked)) < 2 * alone_sd


def test_an_outlier_is_outvoted() -> None:
    rows = [("a", f"f{i}", nodes, 8 * nodes, batch) for i in range(6) for nodes, batch in ((1, 256), (8, 32))]
    known, asked = runs(*rows, ("a", "mine", 1, 8, 256)), runs(("a", "mine", 8, 64, 32))
    clean = truth(known)
    spoilt = clean.copy()
    spoilt[1] *= 8.0
    first, second = (fit_fleet(known, times, PRIORS).predict(asked)[0] for times in (clean, spoilt))
    assert ratio(first, second) < 0.5 * np.log(8.0) / 6  # half of what it would move the mean of six


def test_repeats_and_contradictions_give_one_finite_forecast() -> None:
    same = runs(*[("a", "mine", 1, 8, 64)] * 3)
    time_s, log_sd = fit_fleet(same, np.array([0.1, 0.1, 0.3]), PRIORS).predict(runs(("a", "mine", 1, 8, 64)))
    assert 0.09 < time_s[0] < 0.3
    assert np.isfinite(log_sd).all()


def test_an_unknown_accelerator_gets_a_wide_interval() -> None:
    known = runs(*[("a", f"f{i}", nodes, 8 * nodes, 32) for i in range(4) for nodes in (1, 8)])
    model = fit_fleet(known, truth(known), PRIORS)
    _, familiar = model.predict(runs(("a", "f0", 16, 128, 32)))
    _, strange = model.predict(runs(("b", "new", 16, 128, 32)))
    assert strange > 0.4 > familiar


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(1e-3, 1e3),
    batches=st.lists(st.floats(1.0, 512.0), min_size=1, max_size=6),
    nodes=st.integers(1, 512),
)
def test_the_unit_of_time_does_not_matter_and_nothing_is_infinite(
    scale: float, batches: list[float], nodes: int
) -> None:
    known = runs(*[("a", "mine", 1, 8, batch) for batch in batches])
    asked = runs(("a", "mine", nodes, 8 * nodes, batches[0]))
    # The floor of a step is usual in seconds, so that only without that prior the unit is free.
    priors = FleetPriors.from_dict({**PRIORS.to_dict(), "floor_share": 0.0})
    time_s, log_sd = fit_fleet(known, truth(known), priors).predict(asked)
    scaled, scaled_sd = fit_fleet(known, scale * truth(known), priors).predict(asked)
    assert scaled == pytest.approx(scale * time_s, rel=1e-6)
    assert scaled_sd == pytest.approx(log_sd, rel=1e-5)
    assert np.isfinite(time_s).all()
    assert (time_s > 0).all()


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_is_refused(time_s: float) -> None:
    with pytest.raises(InputError, match=r"runs\.time_s"):
        fit_fleet(runs(("a", "mine", 1, 8, 64)), np.array([time_s]), PRIORS)


def test_nothing_measured_is_refused() -> None:
    one = runs(("a", "mine", 1, 8, 64))
    none = FleetRuns(**{name: getattr(one, name)[:0] for name in FleetRuns.__slots__})
    with pytest.raises(InputError, match="at least one"):
        fit_fleet(none, np.array([]), PRIORS)


def test_priors_survive_their_file_and_refuse_what_is_no_number() -> None:
    again = FleetPriors.from_dict(json.loads(json.dumps(PRIORS.to_dict())))
    assert again == PRIORS
    for wrong in ({"noise_sd": float("nan")}, {"noise_sd": "0.1"}, {"level": {"benchmark": 1.0}}):
        with pytest.raises(InputError, match="scaling priors"):
            FleetPriors.from_dict({**PRIORS.to_dict(), **wrong})
