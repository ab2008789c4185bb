import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import (
    make_facts,
    make_job,
    make_pilot,
    make_profile,
    make_step,
    relative_error,
    true_step_time_s,
)
from tula_core.errors import InputError
from tula_core.job import Cluster, Recipe, Target
from tula_core.models.forecasting import Band
from tula_core.models.predictor import _largest, fit
from tula_core.records import (
    QUANTITIES,
    Candidate,
    Correction,
    Corrections,
    MemoryUse,
    MitigationEffect,
    Pilot,
    PilotPoint,
    Row,
    StepTiming,
    from_json,
    to_json,
)
from tula_core.records.candidate import UNKNOWN
from tula_core.records.corrections import BUILTIN
from tula_core.records.profile import Profile


def candidate(nodes=1, processes_per_node=1, local_batch=64, accumulation=1, **more):
    return Candidate(
        nodes=nodes, processes_per_node=processes_per_node, local_batch=local_batch, accumulation=accumulation, **more
    )


GRID = [candidate(n, p, b, a) for n in (1, 2) for p in (1, 2) for b in (1, 16, 64, 100, 1024) for a in (1, 4)]
CLUSTER = Cluster(nodes=2, processes_per_node=2, price_per_node_hour=1.5, power_watts=300.0, billing_seconds=60)


def corrections(**by_quantity):
    made = {name: Correction(log_bias=bias, log_sd=sd, outcomes=9) for name, (bias, sd) in by_quantity.items()}
    return Corrections(schema_version=1, version=3, outcomes=9, jobs=3, by_quantity=made)


def row_of(profile=None, job=None, learnt=BUILTIN, **shape):
    return fit(profile or make_profile(), job or make_job(cluster=CLUSTER), learnt).forecast([candidate(**shape)])[0]


def assert_sound(row: Row) -> None:
    assert set(row.forecast) == set(QUANTITIES)
    for name in QUANTITIES:
        interval = row[name]
        if interval.value is not None:
            assert interval.low <= interval.value <= interval.high
            assert all(math.isfinite(x) for x in (interval.value, interval.low, interval.high))
            assert interval.low >= 0 or name == "accuracy"


@pytest.mark.parametrize("shape", [{"local_batch": b, "processes_per_node": p} for b in (16, 64, 256) for p in (1, 2)])
def test_measured_configurations_are_met(shape):
    row = row_of(job=make_job(target=None), **shape)
    assert row.measured
    truth = true_step_time_s(1, shape["processes_per_node"], shape["local_batch"])
    assert row["step_time_s"].value == pytest.approx(truth, rel=0.05)  # the epoch's last step may be smaller


def test_accumulation_of_a_measured_batch_is_not_measured():
    assert not row_of(accumulation=2).measured
    assert row_of(accumulation=1).measured


def test_total_adds_up():
    row = row_of(processes_per_node=2)
    epochs, steps = row["epochs"].value, row["steps"].value
    assert steps == epochs * math.ceil(20_000 / 128)
    share = 0.05 / 5.0  # a checkpoint of 0.05 s every 5 s
    parts = 5.0 + 0.2 + 2 * 0.05 + (steps * row["step_time_s"].value + epochs * 0.25) * (1 + share)
    assert row["time_to_train_s"].value == pytest.approx(parts, rel=1e-6)
    assert row["node_hours"].value == pytest.approx(parts / 3600)
    assert row["energy_j"].value == pytest.approx(parts * 300)
    assert row["cost_usd"].value == pytest.approx(math.ceil(parts / 60) * 60 / 3600 * 1.5)


def test_steps_times_step_time_counts_a_small_tail():
    row = row_of(job=make_job(target=None), local_batch=15_000)
    full, tail = true_step_time_s(1, 1, 15_000), true_step_time_s(1, 1, 5_000)
    assert row["steps"].value == 10
    assert relative_error(row["step_time_s"].value * 2, full + tail) < 0.2


def test_without_a_target_the_epochs_are_the_recipes():
    row = row_of(job=make_job(target=None))
    assert (row["epochs"].low, row["epochs"].value, row["epochs"].high) == (5, 5, 5)
    assert fit(make_profile(), make_job(target=None)).reach_probability(candidate()) is None


def test_a_target_below_what_is_learnt_stops_early():
    easy, hard = (row_of(job=make_job(target=Target(value=v))) for v in (0.6, 0.999))
    assert easy["epochs"].value < 5
    assert easy["accuracy"].value >= 0.6
    assert hard["epochs"].value == 5
    assert hard["accuracy"].value < 0.999


def test_reach_probability_falls_with_batch_and_target():
    predictor = fit(make_profile(), make_job())
    chances = [predictor.reach_probability(candidate(local_batch=b)) for b in (16, 64, 512, 4096)]
    assert chances == sorted(chances, reverse=True)
    assert 0.0 <= chances[-1] < chances[0] <= 1.0
    harder = fit(make_profile(), make_job(target=Target(value=0.9)))
    assert harder.reach_probability(candidate(local_batch=16)) < chances[0]
    assert predictor.reach_probability(candidate(local_batch=20_001)) is None


def test_no_pilots_leave_accuracy_unknown_and_say_so():
    predictor = fit(make_profile(pilots=()), make_job())
    row = predictor.forecast([candidate()])[0]
    assert row["accuracy"] == UNKNOWN
    assert (row["epochs"].low, row["epochs"].value, row["epochs"].high) == (1, 5, 5)
    assert row["time_to_train_s"].low < 0.6 * row["time_to_train_s"].value
    assert predictor.reach_probability(candidate()) is None
    assert any("no pilot was run" in sentence for sentence in predictor.assumptions)


def test_a_target_on_another_metric_is_not_answered_by_this_one():
    predictor = fit(make_profile(), make_job(target=Target(metric="f1", value=0.9)))
    assert predictor.reach_probability(candidate()) is None
    assert predictor.forecast([candidate()])[0]["epochs"].value == 5
    assert any("'f1'" in sentence for sentence in predictor.assumptions)


def test_a_batch_above_the_data_set_is_infeasible_and_unknown():
    row = row_of(local_batch=20_001)
    assert not row.feasible
    assert "global batch 20001 is above the 20000 training samples" in row.infeasible_because
    assert all(row[name] == UNKNOWN for name in QUANTITIES)
    whole = row_of(job=make_job(target=None), local_batch=20_000)
    assert whole.feasible
    assert whole["steps"].value == 5


def test_what_is_not_modelled_is_refused_aloud():
    row = row_of(power_limit_w=200.0)
    assert not row.feasible
    assert "not forecast where no accelerator's limit is known" in row.infeasible_because


def test_no_price_and_no_power_are_unknown_not_zero():
    predictor = fit(make_profile(), make_job())
    row = predictor.forecast([candidate()])[0]
    assert row["cost_usd"] == UNKNOWN
    assert row["energy_j"] == UNKNOWN
    assert row["node_hours"].value > 0
    assert any(s.startswith("no price is given") for s in predictor.assumptions)


def test_a_spot_price_alone_is_used_and_said():
    predictor = fit(make_profile(), make_job(cluster=Cluster(spot_price_per_node_hour=0.5)))
    assert predictor.forecast([candidate()])[0]["cost_usd"].value > 0
    assert any("only a spot price" in sentence for sentence in predictor.assumptions)
    both = make_job(cluster=Cluster(spot_price_per_node_hour=0.5, price_per_node_hour=5.0))
    dear = fit(make_profile(), both).forecast([candidate()])[0]
    assert dear["cost_usd"].value == pytest.approx(10 * predictor.forecast([candidate()])[0]["cost_usd"].value)


def test_cost_rises_with_the_price_alone():
    rows = [row_of(job=make_job(cluster=Cluster(price_per_node_hour=price))) for price in (1.0, 1.5, 3.0)]
    assert [r["cost_usd"].value for r in rows] == sorted(r["cost_usd"].value for r in rows)
    assert len({r["time_to_train_s"].value for r in rows}) == 1


def test_largest_local_batch_fits_and_the_next_does_not():
    predictor = fit(make_profile(), make_job())
    for limit in (3.3e8, 5e8, 1e9):
        found = predictor.max_local_batch(1, 1, limit)
        fits, beyond = (
            predictor.forecast([candidate(local_batch=b)])[0]["memory_bytes"].high for b in (found, found + 1)
        )
        assert fits <= limit < beyond
    assert predictor.max_local_batch(1, 1, 1e8) == 0
    assert predictor.max_local_batch(1, 1, 1e15) == 20_000
    assert predictor.max_local_batch(2, 2, 1e15) == 5_000
    assert fit(make_profile(memory=()), make_job()).max_local_batch(1, 1, 1e9) is None


def test_the_largest_local_batch_leaves_room_for_what_methods_keep():
    predictor = fit(make_profile(facts=make_facts(gradient_bytes=40_000_000)), make_job(), kept_copies={"keeps": 2.0})
    bare, kept = (predictor.max_local_batch(1, 1, 6e8, None, names) for names in ((), ("keeps",)))
    assert predictor.max_local_batch(1, 1, 6e8, None, ("unknown",)) == bare
    fits, beyond = (
        predictor.forecast([candidate(local_batch=b, mitigation=("keeps",))])[0]["memory_bytes"].high
        for b in (kept, kept + 1)
    )
    assert fits <= 6e8 < beyond and 0 < kept < bare


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_the_largest_that_fits_is_found_in_few_questions(most, largest):
    asked = []

    def fits(sizes):
        asked.append(len(sizes))
        assert (sizes >= 1).all() and (sizes <= most).all()
        return sizes <= largest

    assert _largest(fits, most) == min(most, largest)
    assert len(asked) <= 10


def memory_use(local_batch, peak_bytes, outcome="ok"):
    return MemoryUse(nodes=1, processes_per_node=1, local_batch=local_batch, peak_bytes=peak_bytes, outcome=outcome)


def test_readings_that_do_not_grow_stop_at_the_largest_measured():
    flat = tuple(memory_use(b, round(g * 2**30)) for b, g in [(1, 2.816), (4, 2.842), (8, 2.772), (16, 2.741)])
    predictor = fit(make_profile(memory=flat), make_job())
    assert predictor.max_local_batch(1, 1, 5.24 * 2**30) == 16
    assert any("do not grow" in sentence for sentence in predictor.assumptions)


def test_what_ran_out_of_memory_is_infeasible_from_there_on():
    memory = (*make_profile().memory, memory_use(512, None, "out_of_memory"))
    predictor = fit(make_profile(memory=memory), make_job())
    assert predictor.max_local_batch(1, 1, 1e15) == 511
    below, at = predictor.forecast([candidate(local_batch=511), candidate(local_batch=512)])
    assert below.feasible
    assert not at.feasible
    assert "ran out of memory" in at.infeasible_because
    assert at["step_time_s"].value is not None


def test_step_time_correction_reaches_every_total():
    plain, learnt = row_of(), row_of(learnt=corrections(step_time_s=(math.log(2), 0.1)))
    assert learnt["step_time_s"].value == pytest.approx(2 * plain["step_time_s"].value)
    assert (
        learnt["step_time_s"].high / learnt["step_time_s"].value
        > plain["step_time_s"].high / plain["step_time_s"].value
    )
    more = plain["steps"].value * plain["step_time_s"].value * (1 + 0.05 / 5.0)
    assert learnt["time_to_train_s"].value == pytest.approx(plain["time_to_train_s"].value + more)


def test_total_correction_stands_instead_of_the_others():
    plain = row_of()
    learnt = row_of(learnt=corrections(step_time_s=(math.log(2), 0.1), time_to_train_s=(math.log(1.3), 0.2)))
    assert learnt["time_to_train_s"].value == pytest.approx(1.3 * plain["time_to_train_s"].value)
    assert learnt["node_hours"].value == pytest.approx(1.3 * plain["node_hours"].value)
    assert learnt["time_to_train_s"].high > 1.3 * plain["time_to_train_s"].high


def test_epoch_memory_and_accuracy_corrections():
    job = make_job(target=Target(value=0.8), recipe=Recipe(**{**Recipe().model_dump(), "epochs": 20}))
    plain = row_of(job=job)
    learnt = row_of(job=job, learnt=corrections(epochs=(math.log(2), 0.0), memory_bytes=(math.log(1.5), 0.1)))
    assert learnt["epochs"].value == 2 * plain["epochs"].value
    assert learnt["steps"].value == 2 * plain["steps"].value
    assert learnt["time_to_train_s"].value > plain["time_to_train_s"].value
    assert learnt["memory_bytes"].value == pytest.approx(1.5 * plain["memory_bytes"].value)
    capped = row_of(job=job, learnt=corrections(epochs=(5.0, 0.0), accuracy=(1.0, 0.0)))
    assert capped["epochs"].value == 20
    assert capped["accuracy"].high == 1.0
    hopeless = fit(make_profile(), job, corrections(epochs=(5.0, 0.0)))
    assert hopeless.reach_probability(candidate()) < fit(make_profile(), job).reach_probability(candidate())


def test_label_is_that_of_the_corrections():
    assert fit(make_profile(), make_job()).label == "tula-predictor v1 (built-in)"
    assert fit(make_profile(), make_job(), corrections()).label == "tula-predictor v3 (9 outcomes of 3 jobs)"


def test_same_input_gives_identical_rows_whatever_stands_beside():
    first = fit(make_profile(), make_job(cluster=CLUSTER)).forecast(GRID)
    profile = from_json(Profile, to_json(make_profile()), source="profile")
    second = fit(profile, make_job(cluster=CLUSTER)).forecast(GRID[::-1])[::-1]
    for left, right in zip(first, second, strict=True):
        assert left.candidate == right.candidate
        for name in QUANTITIES:
            assert left[name].value == pytest.approx(right[name].value, rel=1e-9)
    assert fit(make_profile(), make_job(cluster=CLUSTER)).forecast(GRID) == first


def test_rows_survive_the_plan_file():
    for row in fit(make_profile(), make_job(cluster=CLUSTER)).forecast(GRID):
        assert_sound(row)
        assert Row.from_dict(row.to_dict()) == row


def test_no_candidates_no_rows():
    assert fit(make_profile(), make_job()).forecast([]) == []


@pytest.mark.parametrize("field", ["nodes", "processes_per_node", "local_batch", "accumulation"])
def test_a_candidate_of_nothing_is_refused(field):
    with pytest.raises(InputError, match=f"candidate.{field}"):
        fit(make_profile(), make_job()).forecast([candidate(**{field: 0})])


def test_ten_thousand_candidates_are_quick():
    predictor = fit(make_profile(), make_job(cluster=CLUSTER))
    many = [candidate(n, p, b, a) for n in range(1, 17) for p in (1, 2) for b in range(1, 80) for a in (1, 2, 3, 4)]
    started = time.process_time()
    rows = predictor.forecast(many)
    assert len(rows) > 10_000
    assert time.process_time() - started < 5.0  # a second when alone; shared machines are slower


def test_assumptions_name_what_was_not_measured():
    bare = make_profile(
        steps=(make_step(),), communication=(), start_up=(), evaluation=(), checkpoint_s=None, memory=()
    )
    said = "\n".join(fit(bare, make_job(cluster=Cluster(nodes=4, processes_per_node=2))).assumptions)
    for words in (
        "1 thread per process",
        "one configuration",
        "inside a node was not measured",
        "10 Gbit/s assumed",
        "more than one node",
        "start-up was not measured",
        "evaluation was not measured",
        "checkpoint was not measured",
        "memory is unknown",
        "pilots that saw at most 0.3 epochs",
    ):
        assert words in said


def test_a_diverged_pilot_is_named():
    pilots = (make_pilot(64), dataclasses.replace(make_pilot(512), diverged=True))
    said = "\n".join(fit(make_profile(pilots=pilots), make_job()).assumptions)
    assert "the pilot at global batch 512 diverged at learning rate 0.05" in said
    assert "pilots ran at one global batch" in said


times = st.floats(1e-6, 1e4)
counts = st.integers(1, 4096)


@st.composite
def timings(draw):
    step_time_s = draw(times)
    shares = [draw(st.floats(0, 1)) for _ in range(4)]
    total = sum(shares) or 1.0
    names = ("loader_s", "compute_s", "communication_s", "optimizer_s")
    return StepTiming(
        nodes=draw(st.integers(1, 4)),
        processes_per_node=draw(st.integers(1, 8)),
        local_batch=draw(counts),
        accumulation=draw(st.integers(1, 8)),
        steps=draw(counts),
        step_time_s=step_time_s,
        step_time_median_s=step_time_s,
        step_time_error_s=step_time_s * draw(st.floats(0, 3)),
        block_scatter=draw(st.none() | st.floats(0, 3)),
        first_step_s=draw(st.floats(0, 1e4)),
        order=0,
        **{name: step_time_s * share / total for name, share in zip(names, shares, strict=True)},
    )


@st.composite
def pilots(draw):
    point = st.builds(
        PilotPoint,
        samples=st.integers(0, 10**7),
        schedule_fraction=st.floats(0, 1),
        annealing=st.floats(0, 1),
        train_loss=st.floats(0, 10),
        metric=st.floats(0, 1),
        eval_samples=st.integers(1, 10**5),
    )
    return Pilot(
        global_batch=draw(counts),
        learning_rate=0.1,
        planned_samples=10**6,
        seconds=1.0,
        points=tuple(draw(st.lists(point, max_size=4))),
        diverged=draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(timings(), min_size=1, max_size=6),
    st.lists(pilots(), max_size=3),
    st.lists(st.tuples(counts, st.integers(1, 2**40)), max_size=4),
    st.sampled_from([None, 0.0, 0.5, 0.99, 1.0]),
)
def test_any_valid_profile_gives_sound_rows(steps, runs, readings, target):
    memory = tuple(memory_use(b, peak) for b, peak in readings)
    profile = make_profile(steps=tuple(steps), pilots=tuple(runs), memory=memory)
    job = make_job(cluster=CLUSTER, target=None if target is None else Target(value=target))
    predictor = fit(profile, job)
    for row in predictor.forecast(GRID):
        assert_sound(row)
    chance = predictor.reach_probability(GRID[0])
    assert chance is None or 0.0 <= chance <= 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_impossible_step_time_is_named(bad):
    steps = (make_step(), dataclasses.replace(make_step(), step_time_s=bad))
    with pytest.raises(InputError, match=r"profile.steps\[1\].step_time_s: a finite number above 0 is needed, got"):
        fit(make_profile(steps=steps), make_job())


def test_other_impossible_measurements_are_named():
    base = make_profile()
    point = base.pilots[0].points[0]
    cases = {
        "profile.steps: is empty": {"steps": ()},
        r"communication\[0\].time_s": {"communication": (dataclasses.replace(base.communication[0], time_s=-1.0),)},
        r"memory\[0\].peak_bytes": {"memory": (memory_use(1, None),)},
        r"start_up\[0\].seconds": {"start_up": (dataclasses.replace(base.start_up[0], seconds=math.nan),)},
        r"evaluation\[0\].samples": {"evaluation": (dataclasses.replace(base.evaluation[0], samples=0),)},
        "checkpoint_s": {"checkpoint_s": -0.1},
        "facts.train_samples": {"facts": make_facts(train_samples=0)},
        "facts.chance": {"facts": make_facts(chance=math.inf)},
        "noise.noise_scale_samples": {"noise": dataclasses.replace(base.noise, noise_scale_samples=-5.0)},
        r"pilots\[0\].points\[0\].metric: a finite number and at most": {
            "pilots": (dataclasses.replace(base.pilots[0], points=(dataclasses.replace(point, metric=1.2),)),)
        },
        r"points\[0\].schedule_fraction": {
            "pilots": (
                dataclasses.replace(base.pilots[0], points=(dataclasses.replace(point, schedule_fraction=2.0),)),
            )
        },
    }
    for words, overrides in cases.items():
        with pytest.raises(InputError, match=words):
            fit(make_profile(**overrides), make_job())


def test_importing_the_models_loads_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, tula_core.models.predictor as p; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'optuna', 'mlflow', 'prefect')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@given(st.floats(1e-9, 1e9), st.floats(0, 100))
def test_bands_hold_their_value_and_stay_finite(value, log_sd):
    band = Band.log_normal(np.array([value]), np.array([log_sd]))
    assert 0 < band.low[0] <= band.value[0] <= band.high[0] < math.inf


def test_bands_of_whole_draws_stay_whole():
    band = Band.of_draws(np.array([[1.0], [2.0], [2.0], [5.0]]))
    assert (band.low[0], band.value[0], band.high[0]) == (1.0, 2.0, 5.0)


def test_what_is_known_of_a_method_enters_the_rows_that_use_it():
    effects = {"helps": MitigationEffect(log_critical=2.0, log_critical_sd=0.2)}
    rows = [candidate(local_batch=1024), candidate(local_batch=1024, mitigation=("helps",))]
    plain, helped = fit(make_profile(), make_job(), effects=effects).forecast(rows)
    assert helped["accuracy"].value > plain["accuracy"].value
    assert helped["step_time_s"] == plain["step_time_s"]
    unknown = fit(make_profile(), make_job()).forecast(rows)
    assert unknown[0]["accuracy"] == unknown[1]["accuracy"] == plain["accuracy"]
    predictor = fit(make_profile(), make_job(), effects=effects)
    assert predictor.reach_probability(rows[1]) > predictor.reach_probability(rows[0])
