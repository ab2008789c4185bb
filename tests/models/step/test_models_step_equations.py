import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tula_core.models.step.law import NAMES, log_time, log_time_slopes, parameters
from tula_core.models.step.quick import Placed, log_time_along, log_time_with_slopes, placed_log_time
from tula_core.models.step.time import (
    Shapes,
    StepParameters,
    between_all_reduce_s,
    contention,
    inside_all_reduce_s,
    micro_batch_s,
    soft_maximum,
    step_parts,
    waiting_factor,
)

PLAIN = StepParameters(
    floor_s=0.01,
    slope_s=1e-4,
    exponent=1.0,
    floor_sharpness=2.0,
    floor_contention=0.1,
    slope_contention=0.1,
    saturation=0.5,
    alone=0.0,
    node_contention=0.0,
    straggling=0.02,
    inside_fixed_s=1e-4,
    inside_size_s=2e-3,
    inside_growth=0.0,
    between_fixed_s=5e-4,
    between_size_s=1e-2,
    between_sharing=0.7,
    between_growth=0.1,
    two_nodes=0.0,
    fewest_weight=0.3,
    overlap=2.0,
    optimizer_s=1e-3,
    loader_s=0.0,
    loader_slope_s=1e-6,
    loader_overlap=1.0,
)
TIMES = [field for field in StepParameters.__dataclass_fields__ if field.endswith("_s")]

positive = st.floats(1e-6, 1e3)
few = settings(max_examples=25, deadline=None)


def shapes(nodes=1.0, processes=1.0, batch=32.0, accumulation=1.0, fewest=None):
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=float)) for v in (nodes, processes, batch)))
    return Shapes(
        nodes=columns[0],
        processes_per_node=columns[1],
        local_batch=columns[2],
        accumulation=np.full_like(columns[0], accumulation),
        fewest_per_node=None if fewest is None else np.full_like(columns[0], fewest),
    )


def total(**configuration):
    return step_parts(shapes(**configuration), PLAIN).total


@given(positive, positive, st.floats(1, 10))
def test_soft_maximum_lies_between_maximum_and_sum(first, second, sharpness):
    found = float(soft_maximum(np.array(first), np.array(second), sharpness))
    assert max(first, second) * (1 - 1e-12) <= found <= (first + second) * (1 + 1e-12)


def test_soft_maximum_limits():
    assert soft_maximum(np.array(3.0), np.array(4.0), 1.0) == pytest.approx(7.0)
    assert soft_maximum(np.array(3.0), np.array(4.0), 2.0) == pytest.approx(5.0)
    assert soft_maximum(np.array(0.0), np.array(0.0), 2.0) < 1e-290


@few
@given(st.floats(1, 1e4), st.floats(1, 4))
def test_micro_batch_grows_from_its_floor(batch, sharpness):
    p = dataclasses.replace(PLAIN, floor_sharpness=sharpness)
    small, large = micro_batch_s(shapes(batch=[batch, 2 * batch]), p)
    assert 0.01 <= small < large <= 2 * small


@given(st.floats(-1, 1), st.floats(0.01, 5))
def test_one_process_contends_with_nobody(strength, saturation):
    assert contention(np.array(1.0), strength, saturation) == 1.0


def test_contention_is_a_power_law_that_ends():
    g = np.array([2.0, 8.0, 1e9])
    assert contention(g[:2], 0.3, 1e-9) == pytest.approx(g[:2] ** 0.3)
    assert contention(g[2:], 0.3, 0.5) == pytest.approx(np.exp(0.3 / 0.5), rel=1e-3)


def test_one_process_waits_for_nobody_and_sends_nothing():
    assert waiting_factor(np.array(1.0), 0.1) == 1.0
    assert inside_all_reduce_s(np.array(1.0), PLAIN) == 0.0
    assert between_all_reduce_s(shapes(nodes=1, processes=8), PLAIN)[0] == 0.0
    assert step_parts(shapes(), PLAIN).communication[0] == 0.0


def test_without_latency_and_growth_the_ring_sends_twice_the_bytes_at_most():
    p = dataclasses.replace(PLAIN, inside_fixed_s=0.0)
    assert inside_all_reduce_s(np.array([2.0, 1e9]), p) == pytest.approx([2e-3, 4e-3])


@few
@given(st.integers(2, 60), st.integers(1, 8), st.floats(1, 1e4))
def test_communication_grows_with_nodes(nodes, processes, batch):
    one, more = step_parts(shapes(nodes=[nodes, nodes + 1], processes=processes, batch=batch), PLAIN).communication
    assert more > one > 0


@few
@given(st.integers(1, 16), st.integers(1, 8), st.floats(1, 1e4), st.floats(1.0, 4.0))
def test_more_samples_never_take_less(nodes, processes, batch, factor):
    small, large = total(nodes=nodes, processes=processes, batch=[batch, batch * factor])
    assert large >= small


@few
@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.floats(1e-3, 1e3))
def test_units_of_time_change_nothing_but_the_unit(nodes, processes, accumulation, unit):
    there = dataclasses.replace(PLAIN, **{name: unit * getattr(PLAIN, name) for name in TIMES})
    here = shapes(nodes=nodes, processes=processes, accumulation=accumulation)
    assert step_parts(here, there).total == pytest.approx(unit * step_parts(here, PLAIN).total)


def test_accumulation_adds_micro_batches_without_communication():
    once, twice = (step_parts(shapes(nodes=2, processes=2, accumulation=a), PLAIN) for a in (1, 2))
    assert twice.communication == pytest.approx(once.communication)
    assert twice.compute == pytest.approx(2 * once.compute)
    assert twice.optimizer == pytest.approx(once.optimizer)


def test_loader_workers_hide_loading_behind_the_step():
    slow = dataclasses.replace(PLAIN, loader_slope_s=1e-3)
    here = shapes(batch=[1, 1024])
    added = step_parts(here, slow)
    hidden = step_parts(here, dataclasses.replace(slow, loader_overlap=8.0))
    assert added.loader == pytest.approx([1e-3, 1.024])
    assert hidden.loader[0] < 1e-6
    assert hidden.total[1] == pytest.approx(1.024, rel=1e-3)  # bound by the loader
    assert (hidden.total < added.total).all()


def test_the_emptiest_node_eases_the_link():
    even, uneven = (between_all_reduce_s(shapes(nodes=2, processes=4, fewest=f), PLAIN)[0] for f in (4, 1))
    assert uneven < even


def test_slopes_are_those_of_the_law_and_many_sets_go_at_once():
    generator = np.random.default_rng(0)
    theta = generator.normal(0.0, 0.3, len(NAMES)) - 1.0
    here = shapes(nodes=[1, 2, 4], processes=[1, 2, 4], batch=[8, 64, 512])
    step = np.where(np.arange(len(NAMES)) == NAMES.index("overlap"), 1e-3, 0.0)
    change = log_time(here, theta + step) - log_time(here, theta)
    assert change == pytest.approx(log_time_slopes(here, theta) @ step, rel=1e-2, abs=1e-9)
    both = log_time(here, np.stack([theta, theta + step]))
    assert both == pytest.approx(np.stack([log_time(here, theta), log_time(here, theta + step)]))
    assert parameters(theta).overlap > 1.0


@pytest.mark.parametrize("seed", range(4))
def test_the_quick_way_says_the_same(seed):
    generator = np.random.default_rng(seed)
    theta = generator.normal(0.0, 0.4, len(NAMES)) - 1.0
    here = shapes(nodes=[1, 1, 2, 3, 3], processes=[1, 4, 2, 4, 4], batch=[8, 64, 512, 8, 16], fewest=1)
    here = dataclasses.replace(here, accumulation=np.array([1.0, 2.0, 3.0, 1.0, 4.0]))
    quick, slopes = log_time_with_slopes(here, theta)
    assert quick == pytest.approx(log_time(here, theta), rel=1e-9)
    assert slopes == pytest.approx(log_time_slopes(here, theta), rel=1e-4, abs=1e-6)
    assert placed_log_time(Placed.of(here, theta), theta) == pytest.approx(quick, rel=1e-12)


def test_slopes_along_directions_are_sums_of_slopes_and_a_part_is_that_of_the_whole():
    generator = np.random.default_rng(5)
    theta = generator.normal(0.0, 0.4, len(NAMES)) - 1.0
    here = shapes(nodes=[1, 1, 2, 3], processes=[1, 4, 2, 4], batch=[8, 64, 512, 8])
    directions = generator.normal(size=(len(NAMES), 3))
    placed = Placed.of(here, theta, directions)
    _, along = log_time_along(placed, theta, directions)
    slopes = log_time_with_slopes(here, theta)[1]
    assert slopes @ directions == pytest.approx(along.T)
    assert log_time_along(placed.part(slice(1, 3)), theta, directions)[1] == pytest.approx(along[:, 1:3])
