import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import make_facts, make_job, make_profile
from tula_core.job import Recipe
from tula_core.models.memory import ContentMargin, fit_host_memory, fit_memory, state_bytes
from tula_core.models.predictor import fit
from tula_core.records import ContentMemory, HostMemory, MemoryUse

MIB, GIB = 2**20, 2**30


def recipe(**fields):
    return Recipe(**{**make_job().recipe.model_dump(), **fields})


def reading(local_batch, peak, **fields):
    return MemoryUse(
        nodes=1, processes_per_node=1, local_batch=local_batch, peak_bytes=round(peak), outcome="ok", **fields
    )


def predict(model, local_batch, processes=1):
    return [float(x[0]) for x in model.predict(np.array([float(local_batch)]), np.array([float(processes)]))]


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, 1),
        ({"optimizer": "sgd", "momentum": 0.0}, 0),
        ({"optimizer": "adam"}, 2),
        ({"optimizer": "adamw", "momentum": 0.0}, 2),
    ],
)
def test_state_is_counted_from_parameters_and_optimizer(fields, slots):
    facts = make_facts(parameters=150_000, gradient_bytes=400_000)  # 50,000 are frozen
    state = state_bytes(facts, recipe(**fields))
    assert (state.parameters, state.gradients) == (600_000, 400_000)
    assert state.optimizer == slots * 400_000
    assert state.total == 1_000_000 + slots * 400_000


def test_what_must_be_there_narrows_a_forecast_from_one_reading():
    facts = make_facts(parameters=25_000_000, gradient_bytes=100_000_000)
    state = state_bytes(facts, recipe())
    rows = [reading(64, 1.4e9, base_bytes=700_000_000)]
    known, unknown = (fit_memory(rows, gradient_bytes=1e8, state=s) for s in (state, None))
    assert predict(known, 1)[1] > 850e6  # base, gradients, momentum
    assert predict(known, 256)[2] < 0.9e9 + 4 * 0.5e9 * 1.15
    assert predict(unknown, 256)[2] > predict(known, 256)[2]


def test_readings_that_grow_less_than_they_scatter_are_refused():
    rows = [reading(b, g * GIB) for b, g in [(1, 2.80), (2, 2.84), (4, 2.79), (8, 2.85), (16, 2.83)]]
    assert not fit_memory(rows, gradient_bytes=4e5).extrapolates()


def test_memory_grows_at_least_by_the_samples_themselves():
    rows = [reading(b, GIB + 2 * MIB * b) for b in (1, 64, 128)]
    model = fit_memory(rows, gradient_bytes=0, sample_bytes=10 * MIB)
    assert predict(model, 1128)[0] - predict(model, 128)[0] >= 1000 * 10 * MIB


def test_a_first_steps_spike_widens_the_upper_end_alone():
    rows = [reading(b, GIB + MIB * b, first_peak_bytes=GIB + MIB * b) for b in (16, 64, 256)]
    plain = fit_memory(rows, gradient_bytes=0)
    spiked = [dataclasses.replace(rows[0]), dataclasses.replace(rows[1], first_peak_bytes=3 * GIB), rows[2]]
    with_spike = fit_memory(spiked, gradient_bytes=0)
    assert predict(with_spike, 512)[:2] == predict(plain, 512)[:2]
    assert predict(with_spike, 512)[2] == pytest.approx(predict(plain, 512)[2] + 3 * GIB - GIB - 64 * MIB)


def test_the_larger_of_training_and_evaluation_counts():
    def row(b):
        evaluated = max(2 * b, 256)
        train, test = GIB + 2 * MIB * b, GIB + MIB * evaluated
        return reading(b, max(train, test), train_peak_bytes=train, eval_peak_bytes=test, eval_batch=evaluated)

    model = fit_memory([row(b) for b in (16, 32, 64, 256)], gradient_bytes=0)
    assert predict(model, 24)[0] == pytest.approx(GIB + 256 * MIB, rel=0.02)  # 256 are evaluated whatever the batch
    assert predict(model, 1024)[0] == pytest.approx(GIB + 2048 * MIB, rel=0.02)


def test_half_precision_halves_what_grows_and_adds_casts():
    rows = [reading(b, GIB + 4 * MIB * b) for b in (16, 64, 256)]
    model = fit_memory(rows, gradient_bytes=0)
    half = model.in_precision(0.5, 0.1, 50 * MIB)
    assert predict(half, 256)[0] == pytest.approx(GIB + 512 * MIB + 50 * MIB, rel=0.02)
    assert predict(half, 256)[0] < predict(model, 256)[0]
    width, own = predict(half, 1024), predict(model, 1024)
    assert (width[2] - width[1]) / width[0] > (own[2] - own[1]) / own[0]


@pytest.mark.parametrize("batch", [1, 8, 64, 4096])
def test_the_worst_batch_lies_between_the_mean_and_all_worst(batch):
    content = ContentMemory(samples=300, mean_bytes=1.09e6, sd_bytes=0.9e6, worst_bytes=10e6)
    factor = float(ContentMargin.of(content).factor(np.array([float(batch)]))[0])
    assert 1.0 < factor <= 10 / 1.09
    assert (factor == 10 / 1.09) == (batch == 1)


def test_content_widens_the_upper_end_and_even_content_does_not():
    rows = [reading(b, GIB + 4 * MIB * b) for b in (16, 64, 256)]
    uneven = ContentMemory(samples=300, mean_bytes=1.09e6, sd_bytes=0.9e6, worst_bytes=10e6)
    even = ContentMemory(samples=300, mean_bytes=1e6, sd_bytes=0.0, worst_bytes=1e6)
    plain = predict(fit_memory(rows, gradient_bytes=0), 64)
    assert predict(fit_memory(rows, gradient_bytes=0, content=even), 64) == plain
    wide = predict(fit_memory(rows, gradient_bytes=0, content=uneven), 64)
    assert wide[0] == plain[0]
    assert wide[2] > plain[2] + 0.4 * 4 * MIB * 64


def test_loader_workers_hold_their_batches_in_host_memory():
    facts = make_facts(sample_bytes=10_000_000)
    model = fit_host_memory(None, facts, recipe(loader_workers=8), device="cuda")
    held = float(model.loader_bytes(np.array([512.0]))[0])
    assert held == pytest.approx(8 * 2 * 512 * 10e6, rel=0.02)  # 82 GB
    assert float(model.upper_bytes(np.array([512.0]), np.ones(1))[0]) > 64 * GIB
    assert float(model.upper_bytes(np.array([64.0]), np.ones(1))[0]) < 64 * GIB
    assert float(model.upper_bytes(np.array([64.0]), np.full(1, 8.0))[0]) > 64 * GIB


def test_without_workers_a_cpu_machines_processes_are_all_there_is():
    model = fit_host_memory(
        HostMemory(process_bytes=None, worker_bytes=None), make_facts(), recipe(loader_workers=0), device="cpu"
    )
    assert float(model.upper_bytes(np.array([512.0]), np.full(1, 4.0), 2.0 * GIB)[0]) == 8 * GIB


READINGS = st.lists(
    st.tuples(
        st.integers(1, 4096),
        st.floats(1e7, 1e11),
        st.floats(0.0, 1.2),
        st.one_of(st.none(), st.floats(0.1, 3.0)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(readings=READINGS, batch=st.integers(1, 100_000), parameters=st.integers(0, 10**9), several=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_readings_give_a_finite_forecast_inside_its_interval(readings, batch, parameters, several):
    """Noise, contradiction, one row, a base above the peaks, an evaluation that dwarfs training."""
    facts = make_facts(parameters=parameters, gradient_bytes=4 * parameters)
    rows = [
        MemoryUse(
            nodes=1,
            processes_per_node=1 + alone,
            local_batch=local,
            peak_bytes=round(peak * max(1.0, test or 0.0)),
            outcome="ok",
            base_bytes=round(peak * base) or None,
            train_peak_bytes=None if test is None else round(peak),
            eval_peak_bytes=None if test is None else round(peak * test),
            eval_batch=None if test is None else max(2 * local, 64),
        )
        for local, peak, base, test, alone in readings
    ]
    model = fit_memory(rows, gradient_bytes=facts.gradient_bytes, state=state_bytes(facts, recipe()), sample_bytes=784)
    for one in (model, model.in_precision(0.6, 0.12, 1e6)):
        value, low, high = predict(one, batch, 1 + several)
        assert all(math.isfinite(number) for number in (value, low, high))
        assert 0 <= low <= value <= high
        assert predict(one, 2 * batch, 1 + several)[2] >= 0.99 * high


def test_a_network_of_any_size_scales_its_forecast_alike():
    def model(scale):
        rows = [reading(b, scale * (GIB + 4 * MIB * b)) for b in (8, 64, 256)]
        return fit_memory(rows, gradient_bytes=scale * 1e8)

    small, large = predict(model(1), 1024, 2), predict(model(16), 1024, 2)
    assert large == pytest.approx([16 * part for part in small], rel=1e-6)


def test_one_full_sample_pads_its_whole_batch():
    """Elsewhere a margin for sums of samples is taken where one in a hundred makes all others as large."""
    content = ContentMemory(samples=141, mean_bytes=4.36, sd_bytes=3.6, worst_bytes=40.0, padded=True)
    sizes = np.array([1.0, 16.0, 256.0])
    assert ContentMargin.of(content).factor(sizes) == pytest.approx([40 / 4.36] * 3)


@pytest.mark.parametrize(("tried", "rare"), [(300, "0.99 %"), (141, "2.1 %")])
def test_the_plan_says_how_few_samples_were_looked_at(tried, rare):
    """Elsewhere nothing tells that a rare sample was never tried."""
    content = ContentMemory(samples=tried, mean_bytes=1e6, sd_bytes=0.0, worst_bytes=1e6)
    said = fit(make_profile(content=content), make_job()).assumptions
    of = make_profile().facts.train_samples
    [text] = [text for text in said if text.startswith(f"{tried} of {of} training samples were looked at")]
    assert rare in text
