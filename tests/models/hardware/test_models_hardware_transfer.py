from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tula_core.errors import InputError
from tula_core.models.hardware.transfer import Device, TransferPriors, log_time_ratio
from tula_core.models.hardware.what_if import load_transfer_priors

PRIORS = load_transfer_priors()
HERE = Device(flops_per_s=1e14, memory_bytes_per_s=1e12)
FACTORS = st.floats(0.01, 100.0)


def moved(compute: float = 1.0, memory: float = 1.0) -> Device:
    return Device(flops_per_s=HERE.flops_per_s * compute, memory_bytes_per_s=HERE.memory_bytes_per_s * memory)


def test_the_same_facts_take_the_same_time_with_a_spread() -> None:
    ratio, sd = log_time_ratio(HERE, HERE, PRIORS)
    assert ratio == 0.0
    assert sd == pytest.approx(PRIORS.fact_sd)
    assert sd > 0


@given(compute=FACTORS, memory=FACTORS, more=st.floats(1.0, 10.0))
def test_a_faster_device_never_takes_longer(compute: float, memory: float, more: float) -> None:
    ratio, _ = log_time_ratio(HERE, moved(compute, memory), PRIORS)
    assert log_time_ratio(HERE, moved(compute * more, memory), PRIORS)[0] <= ratio + 1e-12
    assert log_time_ratio(HERE, moved(compute, memory * more), PRIORS)[0] <= ratio + 1e-12


@given(factor=FACTORS)
def test_twice_as_fast_in_all_is_twice_as_fast(factor: float) -> None:
    ratio, _ = log_time_ratio(HERE, moved(factor, factor), PRIORS)
    assert ratio == pytest.approx(-math.log(factor), abs=1e-12)


@given(compute=FACTORS, memory=FACTORS)
def test_there_and_back_is_where_one_began(compute: float, memory: float) -> None:
    there = moved(compute, memory)
    (out, out_sd), (back, back_sd) = log_time_ratio(HERE, there, PRIORS), log_time_ratio(there, HERE, PRIORS)
    assert out == pytest.approx(-back, abs=1e-12)
    assert out_sd == pytest.approx(back_sd)


def test_the_farther_and_the_more_lopsided_the_wider() -> None:
    widths = [log_time_ratio(HERE, moved(f, f), PRIORS)[1] for f in (1.0, 2.0, 8.0)]
    assert widths == sorted(widths)
    assert log_time_ratio(HERE, moved(4.0, 1.0), PRIORS)[1] > log_time_ratio(HERE, moved(2.0, 2.0), PRIORS)[1]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["flops_per_s", "memory_bytes_per_s"])
def test_impossible_rates_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"device\.{name}"):
        dataclasses.replace(HERE, **{name: value})


@pytest.mark.parametrize("change", [{"fact_sd": -1.0}, {"memory_share": 1.5}, {"floor_sd": math.inf}, {"fact_sd": "x"}])
def test_impossible_priors_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match="transfer priors"):
        TransferPriors.from_dict({**dataclasses.asdict(PRIORS), **change})
