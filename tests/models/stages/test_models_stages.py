from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.factories import make_facts, make_job, make_pilot, make_profile
from tula_core.engine.shares import Layout, window_sizes
from tula_core.errors import InputError
from tula_core.job import Cluster, Recipe, Target
from tula_core.models.predictor import fit
from tula_core.models.stages.chances import course_of
from tula_core.models.stages.walk import walk
from tula_core.records import QUANTITIES, Candidate, Correction, Corrections, MitigationEffect, Row, Stage

CLUSTER = Cluster(nodes=4, processes_per_node=2, price_per_node_hour=1.5, power_watts=300.0, billing_seconds=60)


def stage(from_samples=0, nodes=1, processes_per_node=1, local_batch=64, accumulation=1):
    return Stage(
        from_samples=from_samples,
        nodes=nodes,
        processes_per_node=processes_per_node,
        local_batch=local_batch,
        accumulation=accumulation,
    )


def candidate(*stages: Stage) -> Candidate:
    last = stages[-1]
    return Candidate(
        nodes=last.nodes,
        processes_per_node=last.processes_per_node,
        local_batch=last.local_batch,
        accumulation=last.accumulation,
        mitigation=("growth",),
        stages=stages,
    )


def plain(staged: Candidate) -> Candidate:
    return dataclasses.replace(staged, stages=None)


def rows(*candidates: Candidate, job=None, **more) -> list[Row]:
    return fit(make_profile(), job or make_job(cluster=CLUSTER), **more).forecast(candidates)


GROWN = candidate(stage(0), stage(40_000, local_batch=128), stage(60_000, local_batch=256))
WIDENED = candidate(stage(0), stage(60_000, nodes=4, processes_per_node=2, local_batch=32))


@pytest.mark.parametrize("target", [None, Target(value=0.85)])
def test_one_stage_is_forecast_as_the_plain_candidate(target):
    alone = candidate(stage(0, processes_per_node=2, local_batch=100, accumulation=2))
    staged, other = rows(alone, plain(alone), job=make_job(cluster=CLUSTER, target=target))
    assert staged.forecast == other.forecast and staged.feasible == other.feasible and staged.measured == other.measured


@pytest.mark.parametrize("target", [None, Target(value=0.85), Target(metric="f1", value=0.9)])
@pytest.mark.parametrize("spot", [False, True])
def test_two_stages_that_are_alike_come_to_the_same_by_the_longer_way(target, spot):
    more = {"price_per_node_hour": None, "spot_price_per_node_hour": 0.5, "spot_interruptions_per_hour": 0.2}
    cluster = CLUSTER.model_copy(update=more) if spot else CLUSTER
    alike = candidate(stage(0, local_batch=128), stage(40_000, local_batch=128))
    learnt = {name: Correction(log_bias=0.2, log_sd=0.1, outcomes=9) for name in ("step_time_s", "epochs", "accuracy")}
    corrections = Corrections(schema_version=1, version=3, outcomes=9, jobs=3, by_quantity=learnt)
    found = rows(alike, plain(alike), job=make_job(cluster=cluster, target=target), corrections=corrections)
    for name in QUANTITIES:
        one, other = (dataclasses.astuple(row[name]) for row in found)
        # There is no relaunch; the first step of a shape is counted once more.
        assert one == other or one == pytest.approx(other, rel=2e-3), name


def test_a_correction_of_the_total_is_followed_like_a_plain_ones():
    alike = candidate(stage(0, local_batch=128), stage(40_000, local_batch=128))
    learnt = {"time_to_train_s": Correction(log_bias=0.5, log_sd=0.3, outcomes=9)}
    corrections = Corrections(schema_version=1, version=3, outcomes=9, jobs=3, by_quantity=learnt)
    found = rows(alike, plain(alike), corrections=corrections)
    assert dataclasses.astuple(found[0]["time_to_train_s"]) == pytest.approx(
        dataclasses.astuple(found[1]["time_to_train_s"]), rel=2e-3
    )


def test_the_steps_are_those_the_engine_takes():
    stages = [stage(0, local_batch=4), stage(40, local_batch=8), stage(102, local_batch=8, accumulation=2)]
    course = walk(stages, 51, 3)
    assert course.steps.tolist() == [[0, 0, 0], [10, 2, 0], [10, 9, 0], [10, 9, 4]]
    assert course.samples.sum(axis=1).tolist() == [0, 51, 102, 153]
    assert course.evaluations.tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 1]]


@pytest.mark.parametrize("first", [0.05, 0.3, 0.9, 1.6])
def test_the_steps_of_two_stages_are_a_sum_over_the_parts_of_epochs(first):
    samples, small, large = 1000, 10, 64
    begin = round(first * samples / small) * small
    course = walk([stage(0, local_batch=small), stage(begin, local_batch=large)], samples, 2)
    left = samples - begin % samples
    rest = len(window_sizes(left, Layout(processes=1, local_batch=large)))
    later = (2 * samples - begin - left) // samples
    assert course.steps[-1].tolist() == [begin / small, rest + later * math.ceil(samples / large)]


def test_a_growing_batch_lies_between_its_smallest_and_its_largest():
    small = dataclasses.replace(plain(GROWN), local_batch=64)
    job = make_job(cluster=CLUSTER, target=None)
    grown, first, last = rows(GROWN, small, plain(GROWN), job=job)
    for name in ("steps", "step_time_s", "time_to_train_s", "accuracy"):
        ends = sorted((first[name].value, last[name].value))
        assert ends[0] < grown[name].value < ends[1], name
    assert grown["memory_bytes"] == last["memory_bytes"]
    assert grown["steps"].value == 2 * 313 + 157 + 2 * 79


def test_growing_later_learns_more_and_takes_longer():
    job = make_job(cluster=CLUSTER, target=None)
    found = rows(*(candidate(stage(0), stage(at, local_batch=512)) for at in (20_000, 60_000, 80_000)), job=job)
    for name in ("accuracy", "time_to_train_s", "steps"):
        values = [row[name].value for row in found]
        assert values == sorted(values) and values[0] < values[-1], name


def test_nodes_are_paid_only_while_they_run():
    job = make_job(cluster=CLUSTER.model_copy(update={"billing_seconds": 1}), target=None)
    (widened,) = rows(WIDENED, job=job)
    hours = widened["time_to_train_s"].value / 3600
    assert hours < widened["node_hours"].value < 4 * hours
    most = widened["time_to_train_s"].value * 4 * 1.5 / 3600
    assert widened["time_to_train_s"].value * 1.5 / 3600 < widened["cost_usd"].value < most
    for name in ("cost_usd", "node_hours", "energy_j", "time_to_train_s"):
        assert widened[name].low <= widened[name].value <= widened[name].high


def test_a_change_of_processes_costs_a_start():
    here = candidate(
        stage(0, processes_per_node=2, local_batch=32), stage(40_000, processes_per_node=2, local_batch=64)
    )
    there = candidate(stage(0, local_batch=64), stage(40_000, processes_per_node=2, local_batch=64))
    job = make_job(cluster=CLUSTER, target=None)
    slow = fit(make_profile(start_up=()), job).forecast([here, there])
    quick = fit(make_profile(), job).forecast([here, there])
    # Starts are taken to last ten seconds where none was measured, else 4 s of one process and 5 s of two.
    one, two = (a["time_to_train_s"].value - b["time_to_train_s"].value for a, b in zip(slow, quick, strict=True))
    assert (one, two) == (pytest.approx(10 - 5), pytest.approx(20 - 9))


def test_a_target_met_in_the_first_stage_never_pays_for_the_second():
    easy = make_job(cluster=CLUSTER, target=Target(value=0.2))
    widened, alone = rows(WIDENED, Candidate(nodes=1, processes_per_node=1, local_batch=64), job=easy)
    assert widened["epochs"].value == alone["epochs"].value == 1
    for name in ("time_to_train_s", "node_hours", "cost_usd", "steps"):
        assert widened[name].value == pytest.approx(alone[name].value, rel=1e-9), name


def test_the_chance_of_the_target_is_between_those_of_the_batches():
    predictor = fit(make_profile(), make_job(target=Target(value=0.93), recipe=Recipe(batch_size=64)))
    large = candidate(stage(0), stage(50_000, local_batch=4096))
    chances = [
        predictor.reach_probability(c) for c in (plain(large), large, dataclasses.replace(plain(large), local_batch=64))
    ]
    assert chances == sorted(chances) and chances[0] < chances[-1]


def test_what_a_method_is_known_to_do_is_applied_to_all_stages():
    better = {"growth": MitigationEffect(log_gap=-0.5)}
    job = make_job(cluster=CLUSTER, target=None)
    (known,), (unknown,) = rows(GROWN, job=job, effects=better), rows(GROWN, job=job)
    assert known["accuracy"].value > unknown["accuracy"].value


def test_without_pilots_accuracy_is_unknown_and_time_is_not():
    profile = make_profile(pilots=(), facts=make_facts())
    row = fit(profile, make_job(cluster=CLUSTER, target=None)).forecast([GROWN])[0]
    assert row["accuracy"].value is None and row["time_to_train_s"].value > 0


def test_a_stage_that_ran_out_of_memory_is_not_feasible():
    profile = make_profile(pilots=(make_pilot(64),))
    failed = dataclasses.replace(profile.memory[-1], local_batch=200, peak_bytes=None, outcome="out_of_memory")
    row = fit(dataclasses.replace(profile, memory=(*profile.memory[:-1], failed)), make_job()).forecast([GROWN])[0]
    assert not row.feasible and "local batch 200 ran out of memory" in row.infeasible_because


def test_it_is_measured_where_every_stage_is():
    timed = candidate(stage(0), stage(40_000, local_batch=256))
    assert [row.measured for row in rows(timed, GROWN)] == [True, False]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((), "has to begin at 0"),
        ((stage(5),), "has to begin at 0"),
        ((stage(0), stage(0)), "has to begin at 0"),
        ((stage(0), stage(9, local_batch=0)), "stages.1.local_batch"),
        ((stage(0), stage(9, local_batch=128)), "candidate's own layout"),
        ((stage(0, local_batch=128), stage(9)), "no batch may be above"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages, said):
    asked = dataclasses.replace(candidate(stage(0)), stages=stages)
    with pytest.raises(InputError, match=said):
        rows(asked)


def test_forecasts_of_many_samples_are_finite():
    steps = walk([stage(0), stage(64 * 10**6, local_batch=128)], 10**8, 300).steps
    assert np.isfinite(steps).all() and steps[-1, 0] == 10**6


@pytest.mark.parametrize("chosen", [plain(GROWN), GROWN, WIDENED])
def test_the_expected_curve_ends_at_the_forecast_accuracy(chosen):
    correction = Corrections(
        schema_version=1,
        version=2,
        outcomes=4,
        jobs=2,
        by_quantity={"accuracy": Correction(log_bias=-0.02, log_sd=0.01, outcomes=4)},
    )
    job = make_job(cluster=CLUSTER, target=None)
    predictor = fit(make_profile(), job, correction, effects={"growth": MitigationEffect(log_gap=0.1, log_gap_sd=0.2)})
    curve = predictor.expected_curve(chosen)
    (row,) = predictor.forecast([chosen])
    last, accuracy = curve[-1], row["accuracy"]
    assert [point.epochs for point in curve] == list(range(1, job.recipe.epochs + 1))
    assert (last.low, last.value, last.high) == pytest.approx((accuracy.low, accuracy.value, accuracy.high))
    assert all(point.low <= point.value <= point.high for point in curve) and curve[0].value < last.value


def test_a_target_does_not_end_the_expected_curve():
    aimed, free = (
        fit(make_profile(), make_job(target=target)).expected_curve(GROWN) for target in (Target(value=0.5), None)
    )
    assert aimed == free


def test_nothing_is_expected_where_nothing_is_known_of_learning():
    assert fit(make_profile(pilots=()), make_job()).expected_curve(GROWN) is None
    assert fit(make_profile(), make_job()).expected_curve(candidate(stage(0, local_batch=10**6))) is None


def test_a_chance_to_keep_the_metric_is_that_of_the_difference_in_the_same_draws():
    known = {"growth": MitigationEffect(log_work_sd=0.5)}
    predictor = fit(make_profile(), make_job(target=None), effects=known)
    reference = Candidate(nodes=1, processes_per_node=1, local_batch=64)
    large = plain(candidate(stage(0, local_batch=4096)))
    chances = [predictor.keeping_probability(large, reference, slack) for slack in (0.0, 0.01, 0.5)]
    assert chances == sorted(chances) and chances[0] < 0.1 and chances[-1] > 0.7
    assert predictor.keeping_probability(reference, reference, 0.0) == 1.0
    assert predictor.keeping_probability(GROWN, reference, 0.01) > predictor.keeping_probability(large, reference, 0.01)
    assert fit(make_profile(pilots=()), make_job()).keeping_probability(GROWN, reference, 0.1) is None


def test_many_staged_candidates_are_forecast_as_each_alone():
    later = candidate(stage(0), stage(60_000, local_batch=128))
    spread = candidate(stage(0), stage(40_000, processes_per_node=2), stage(60_000, nodes=2, processes_per_node=2))
    asked = [GROWN, later, spread, WIDENED, GROWN]
    together = rows(*asked)
    for row, each in zip(together, asked, strict=True):
        (alone,) = rows(each)
        for name in QUANTITIES:
            assert row[name].value == pytest.approx(alone[name].value, rel=1e-12)
    # Whichever processes share a batch, as much is learnt of it.
    assert together[0]["accuracy"] == together[2]["accuracy"] != together[1]["accuracy"]
    assert course_of(GROWN) == course_of(spread) == ((0, 64), (40_000, 128), (60_000, 256))
    assert course_of(plain(GROWN)) == ((0, 256),)
