import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import make_job, make_profile, make_step
from tula_core.errors import InputError
from tula_core.job import Recipe
from tula_core.models.precision import compute_ratio, fit_precision
from tula_core.models.predictor import fit
from tula_core.models.step.time import Shapes
from tula_core.records import Candidate, PrecisionTiming

MIB = 2**20
FLOOR_S, SLOPE_S = 2e-3, 1e-4  # of the factories' computation
LAUNCH, LARGE = 1.15, 0.4


def true_ratio(local_batch, launch=LAUNCH, large=LARGE):
    reference = FLOOR_S + SLOPE_S * local_batch
    return (launch * FLOOR_S + large * SLOPE_S * local_batch) / reference


def timing(local_batch, ratio=None, precision="bf16", **changes):
    reference_s = FLOOR_S + SLOPE_S * local_batch
    made = PrecisionTiming(
        precision=precision,
        local_batch=local_batch,
        outcome="ok",
        compute_s=reference_s * (true_ratio(local_batch) if ratio is None else ratio),
        reference_compute_s=reference_s,
        ratio_error=0.02,
        optimizer_s=4e-4,
        reference_optimizer_s=4e-4,
        peak_bytes=None,
        reference_peak_bytes=None,
        loss_difference=0.001,
    )
    return dataclasses.replace(made, **changes)


def model_of(rows, device="cuda", precision="bf16", reference="fp32", steps=None):
    return fit_precision(precision, reference, rows, steps or make_profile().steps, device=device)


def ratio_of(model, local_batch):
    ratio, log_sd = model.ratio(np.array([float(local_batch)]))
    return float(ratio[0]), float(log_sd[0])


@given(batch=st.floats(1, 1e6), launch=st.floats(0.2, 5), large=st.floats(0.2, 5), half=st.floats(0.1, 1e4))
@settings(max_examples=100, deadline=None)
def test_the_ratio_lies_between_its_limits_and_is_the_ratio_of_two_lines(batch, launch, large, half):
    ratio = float(compute_ratio(np.array(batch), launch, large, half))
    assert min(launch, large) * (1 - 1e-9) <= ratio <= max(launch, large) * (1 + 1e-9)
    floor, slope = half * 1e-4, 1e-4
    assert ratio == pytest.approx((launch * floor + large * slope * batch) / (floor + slope * batch), rel=1e-9)


@pytest.mark.parametrize("local_batch", [1, 8, 100, 1024, 8192])
def test_recovers_a_known_ratio_within_its_interval(local_batch):
    model = model_of([timing(b) for b in (4, 64, 1024)])
    ratio, log_sd = ratio_of(model, local_batch)
    assert abs(math.log(ratio / true_ratio(local_batch))) < 1.645 * log_sd
    assert ratio == pytest.approx(true_ratio(local_batch), rel=0.15)


def test_without_measurements_the_interval_is_wide_and_holds_what_is_published():
    ratio, log_sd = ratio_of(model_of([]), 4096)
    assert ratio / math.exp(1.645 * log_sd) < 1 / 2.4
    assert ratio * math.exp(1.645 * log_sd) > 1.0
    slow, slow_sd = ratio_of(model_of([], device="cpu", precision="fp16"), 4096)
    assert slow > 1.0
    assert slow_sd > log_sd


def test_small_batches_gain_less_than_large_ones_on_an_accelerator():
    model = model_of([])
    assert ratio_of(model, 1)[0] > ratio_of(model, 64)[0] > ratio_of(model, 4096)[0]


def test_a_measurement_narrows_the_interval_and_contradictory_ones_widen_it():
    none, one = ratio_of(model_of([]), 256)[1], ratio_of(model_of([timing(256)]), 256)[1]
    torn = ratio_of(model_of([timing(256, 0.4), timing(256, 1.6)]), 256)[1]
    assert one < 0.5 * none
    assert torn > 2 * one


def test_the_other_way_round_is_the_reciprocal():
    there, back = model_of([]), model_of([], precision="fp32", reference="bf16")
    assert ratio_of(there, 10_000)[0] * ratio_of(back, 10_000)[0] == pytest.approx(1, rel=0.02)


def test_a_precision_that_failed_is_known_to():
    failed = timing(
        8, outcome="failed", compute_s=None, reference_compute_s=None, ratio_error=None, failure="no kernel"
    )
    assert model_of([failed]).failure == "no kernel"
    assert model_of([timing(4), failed]).failure is None


def test_activations_follow_measured_peaks_and_else_what_is_usual():
    rows = [timing(b, peak_bytes=grown_bytes(b, 0.5), reference_peak_bytes=grown_bytes(b, 1.0)) for b in (64, 1024)]
    grown = np.array([64 * 4.0 * MIB, 1024 * 4.0 * MIB])
    factor, sd = model_of(rows).activations(grown, 0.0, "fp32")
    assert factor == pytest.approx(0.5, abs=0.05)
    usual, usual_sd = model_of([]).activations(np.array([]), 0.0, "fp32")
    assert 0.5 < usual < 0.75
    assert sd < usual_sd


def grown_bytes(local_batch, factor):
    return round(500 * MIB + factor * 4 * MIB * local_batch)


def predictor_of(precisions=(), profile=None, reference="fp32", **job):
    recipe = Recipe(**{**make_job().recipe.model_dump(), "precision": reference})
    asked = make_job(recipe=recipe, precisions=["fp32", "bf16"], **job)
    return fit(profile or make_profile(precisions=tuple(precisions)), asked)


def candidate(local_batch, precision="bf16", processes=1, nodes=1):
    options = {} if precision is None else {"precision": precision}
    return Candidate(nodes=nodes, processes_per_node=processes, local_batch=local_batch, options=options)


def test_rows_come_back_in_order_each_in_its_precision():
    predictor = predictor_of([timing(b) for b in (16, 64, 256)])
    asked = [candidate(256), candidate(256, None), candidate(16), candidate(16, None)]
    rows = predictor.forecast(asked)
    assert [row.candidate for row in rows] == asked
    fast, own, small, small_own = (row["step_time_s"].value for row in rows)
    for value, reference, batch in ((fast, own, 256), (small, small_own, 16)):
        gained = (FLOOR_S + SLOPE_S * batch) * (1 - true_ratio(batch))
        assert value == pytest.approx(reference - gained, rel=0.05)
    assert fast / own < small / small_own
    assert [row.measured for row in rows] == [True, True, True, True]
    step = predictor._precisions.models(predictor.models, "bf16").step
    here = Shapes.of(asked)
    assert step.seconds(here) == pytest.approx(step.predict(here)[0], rel=1e-12)
    assert predictor.forecast([candidate(1024)])[0].measured is False


def test_communication_does_not_gain():
    slow_link = make_profile(precisions=tuple(timing(b, 0.3) for b in (16, 64, 256)))
    steps = tuple(
        dataclasses.replace(row, communication_s=0.2, step_time_s=row.step_time_s + 0.2, step_time_median_s=0.2)
        if row.processes_per_node == 2
        else row
        for row in slow_link.steps
    )
    predictor = predictor_of(profile=dataclasses.replace(slow_link, steps=steps))
    own, fast = predictor.forecast([candidate(256, None, 2), candidate(256, "bf16", 2)])
    assert own["step_time_s"].value - fast["step_time_s"].value < FLOOR_S + SLOPE_S * 256
    assert fast["step_time_s"].value > 0.2


def test_an_unmeasured_precision_is_wide_and_said():
    predictor = predictor_of()
    own, other = predictor.forecast([candidate(64, None), candidate(64)])
    width = {row.candidate.precision: row["step_time_s"].high / row["step_time_s"].low for row in (own, other)}
    assert width["bf16"] > 1.5 * width[None]
    assert not other.measured
    assert any("bf16 was not measured" in text for text in predictor.assumptions)
    assert any("accuracy and epochs in bf16 are taken to be those in fp32" in text for text in predictor.assumptions)


def test_a_failed_or_unknown_precision_is_infeasible_with_its_reason():
    failed = timing(16, outcome="failed", compute_s=None, reference_compute_s=None, failure="RuntimeError: no kernel")
    row, other = predictor_of([failed]).forecast([candidate(16), candidate(16, "fp16")])
    assert "no kernel" in row.infeasible_because
    assert "not among those considered" in other.infeasible_because


def test_half_precision_admits_larger_batches():
    predictor = predictor_of([timing(b) for b in (16, 64, 256)])
    limit = 5e8
    assert predictor.max_local_batch(1, 1, limit, "bf16") > predictor.max_local_batch(1, 1, limit) > 0


@pytest.mark.parametrize("field", ["compute_s", "reference_compute_s", "ratio_error"])
@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_numbers_that_cannot_be_are_refused(field, value):
    with pytest.raises(InputError, match=rf"precisions\[0\].{field}"):
        predictor_of([timing(16, **{field: value})])


def test_one_timed_step_is_enough():
    profile = make_profile(steps=(make_step(local_batch=64),), precisions=(timing(64),))
    row = predictor_of(profile=profile).forecast([candidate(512, "bf16", 4, 2)])[0]
    assert 0 < row["step_time_s"].low < row["step_time_s"].value < row["step_time_s"].high


def test_loader_workers_beyond_the_hosts_memory_are_infeasible():
    """8 workers that hold 2 batches of 512 samples of 10 MB ready fill 80 GB."""
    profile = make_profile()
    profile = dataclasses.replace(
        profile,
        facts=dataclasses.replace(profile.facts, sample_bytes=10_000_000),
        hardware=dataclasses.replace(profile.hardware, memory_bytes=64 * 2**30),
    )
    recipe = Recipe(**{**make_job().recipe.model_dump(), "loader_workers": 8})
    predictor = fit(profile, make_job(recipe=recipe))
    rows = predictor.forecast([candidate(512, None), candidate(64, None), candidate(256, None, 2)])
    assert "8 loader workers of each process" in rows[0].infeasible_because
    assert "above 90 % of its 64 GiB" in rows[0].infeasible_because
    assert rows[1].feasible
    assert not rows[2].feasible  # both processes are on one host
