import numpy as np
import pytest

from tests.factories import make_profile
from tula_core.models.memory import affine_bytes, fit_memory
from tula_core.records import MemoryUse

GIB = 2**30


def reading(local_batch, peak_bytes, outcome="ok", processes=1):
    return MemoryUse(
        nodes=1,
        processes_per_node=processes,
        local_batch=local_batch,
        peak_bytes=None if peak_bytes is None else round(peak_bytes),
        outcome=outcome,
    )


def predict(model, local_batch, processes=1):
    return [float(x[0]) for x in model.predict(np.array([float(local_batch)]), np.array([float(processes)]))]


@pytest.mark.parametrize("local_batch", [1, 32, 200, 1024, 4096])
def test_recovers_an_affine_truth(local_batch):
    value, low, high = predict(fit_memory(make_profile().memory, gradient_bytes=4e5), local_batch)
    truth = float(affine_bytes(np.array(float(local_batch)), 3e8, 2e5))
    assert value == pytest.approx(truth, rel=0.02)
    assert low < truth < high


def test_readings_that_do_not_grow_are_not_extrapolated():
    pairs = [(1, 2.816), (2, 2.852), (4, 2.842), (8, 2.772), (16, 2.741)]
    model = fit_memory([reading(b, g * GIB) for b, g in pairs], gradient_bytes=4e5)
    assert not model.extrapolates()
    value, low, high = predict(model, 16)
    assert value == pytest.approx(2.852 * GIB)
    assert low < value < high
    assert predict(model, 160)[0] == value
    assert predict(model, 160)[2] >= 10 * value


def test_one_reading_is_met_and_wide_elsewhere():
    model = fit_memory([reading(64, GIB)], gradient_bytes=4e5)
    assert predict(model, 64)[0] == pytest.approx(GIB, rel=0.02)
    value, low, high = predict(model, 1024)
    assert low < 2 * GIB < high
    assert high / value > 1.3


def test_more_processes_add_their_buckets():
    rows = [reading(b, GIB + b * 1e6 + (p > 1) * 1e8, processes=p) for b in (16, 64, 256) for p in (1, 2)]
    model = fit_memory(rows, gradient_bytes=1e8)
    assert predict(model, 64, 2)[0] - predict(model, 64, 1)[0] == pytest.approx(1e8, rel=0.2)


def test_failures_bound_sizes_and_are_not_fitted():
    good = [reading(16, GIB), reading(64, 1.2 * GIB)]
    model = fit_memory([*good, reading(256, None, "out_of_memory"), reading(128, None, "killed", 2)], gradient_bytes=0)
    assert predict(model, 64)[0] == pytest.approx(1.2 * GIB, rel=0.02)
    assert model.failed_at(1, 1) == 256
    assert model.failed_at(2, 1) == 128
    assert fit_memory([reading(256, None, "out_of_memory")], gradient_bytes=0) is None


def test_memory_never_falls_with_the_batch():
    model = fit_memory(make_profile().memory, gradient_bytes=4e5)
    batches = np.arange(1.0, 5000.0, 37.0)
    value, _, high = model.predict(batches, np.ones_like(batches))
    assert (np.diff(value) > 0).all()
    assert (np.diff(high) > 0).all()
