from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import GIB, around, job, profile

from tula_core.engine.batches import Layout, micro_batch_sizes, step_sizes
from tula_core.errors import InputError
from tula_core.job import Target
from tula_core.records import Candidate, Row, Stage
from tula_core.search.constraints import Limits, _fewest_at_once, accuracy_slack, check_request, judge, memory_limit
from tula_core.search.odds import least_chance

Z80, Z90 = 0.8416212335729143, 1.6448536269514722  # normal quantiles of 80 % and of a two-sided 90 % interval

VALUES = {"time_to_train_s": 600.0, "node_hours": 0.5, "cost_usd": 1.0, "memory_bytes": 1.0 * GIB, "accuracy": 0.9}


def judged(
    asked=None, *, batch=64, worst=None, higher=True, chance=None, best=None, samples=1000, candidate=None, **values
):
    row = Row(
        candidate=candidate or Candidate(nodes=1, processes_per_node=1, local_batch=batch),
        feasible=True,
        infeasible_because=None,
        measured=True,
        forecast={name: around(value) for name, value in {**VALUES, **values}.items()},
    )
    limits = Limits(
        job=asked or job(),
        hardware=profile().hardware,
        train_samples=samples,
        expense="node_hours",
        higher_is_better=higher,
        worst_accuracy=worst,
        reach_probability=lambda candidate: chance,
        best_chance=best,
    )
    return judge(row, limits)


def with_limits(**constraints):
    return job(cluster={"price_per_node_hour": 2.0}, constraints=constraints)


@pytest.mark.parametrize(
    ("constraints", "values", "key", "text", "remedy"),
    [
        (
            {"deadline": 599},
            {},
            "deadline",
            "time to train 10.0 min is above the deadline of 9.98 min",
            "deadline to 11m",
        ),
        ({"budget_usd": 0.5}, {"cost_usd": 1.004}, "budget_usd", "cost $1.00 is above the budget of $0.5", "to 1.06"),
        ({"memory": "1GiB"}, {}, "memory", "up to 1.10 GiB, is above constraints.memory, 1 GiB", "memory to 1.1GiB"),
        ({"min_accuracy": 0.95}, {}, "min_accuracy", "accuracy 0.9000 is below the least accuracy of 0.95", "to 0.853"),
        ({"max_local_batch": 32}, {}, "max_local_batch", "local batch 64 is above", "max_local_batch to 64"),
    ],
)
def test_each_limit_names_itself_its_numbers_and_what_would_admit(constraints, values, key, text, remedy):
    item = judged(with_limits(**constraints), **values)
    assert [violation.key for violation in item.violations] == [key]
    assert not item.row.feasible and text in item.row.infeasible_because
    assert item.violations[0].excess > 0 and remedy in item.violations[0].remedy


def test_a_run_that_has_to_begin_alone_takes_other_processes_later():
    def staged(*processes):
        stages = tuple(
            Stage(from_samples=100 * number, nodes=1, processes_per_node=count, local_batch=32, accumulation=1)
            for number, count in enumerate(processes)
        )
        return Candidate(nodes=1, processes_per_node=processes[-1], local_batch=32, stages=stages)

    asked = with_limits(begin_alone=True)
    assert judged(asked, candidate=staged(1, 1, 2)).row.feasible
    wide, single = staged(2, 2), staged(1, 1)
    for candidate in (wide, single, Candidate(nodes=1, processes_per_node=1, local_batch=32)):
        item = judged(asked, candidate=candidate)
        assert [violation.key for violation in item.violations] == ["begin_alone"]
        assert "constraints.begin_alone" in item.row.infeasible_because and "growth" in item.violations[0].remedy
        assert judged(with_limits(), candidate=candidate).row.feasible


def test_limits_that_just_hold_are_feasible():
    constraints = {"deadline": 600, "budget_usd": 1.0, "memory": int(1.1 * GIB) + 1, "min_accuracy": 0.9}
    item = judged(with_limits(**constraints, max_local_batch=64, confidence=0.5))
    assert item.row.feasible and item.row.infeasible_because is None and item.excess == 0


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        (
            {"deadline": 615},
            "the deadline of 10.2 min is kept with a chance of 66 % only, constraints.confidence asks",
        ),
        ({"budget_usd": 1.02}, "the budget of $1.02 is kept with a chance of 63 % only"),
        ({"min_accuracy": 0.88}, "the least accuracy of 0.88 is kept with a chance of 64 % only"),
    ],
)
def test_a_limit_that_is_not_kept_surely_enough_gives_its_chance_and_what_admits(constraints, text):
    item = judged(with_limits(**constraints))
    assert not item.row.feasible and text in item.row.infeasible_because and item.excess > 0
    [violation] = item.violations
    confidence = float(re.search(r"or lower constraints\.confidence to (0\.\d+)", violation.remedy).group(1))
    assert judged(with_limits(**constraints, confidence=confidence)).row.feasible
    assert not judged(with_limits(**constraints, confidence=confidence + 0.01)).row.feasible
    field, value = re.search(r"constraints\.(\w+) to ([0-9.]+m?)", violation.remedy).groups()
    assert judged(with_limits(**{field: value if field == "deadline" else float(value)})).row.feasible


@given(
    st.floats(300, 1200), st.floats(0, 300), st.floats(0.5, 0.99), st.floats(0, 0.4), st.sampled_from(["time", "cost"])
)
@settings(max_examples=50, deadline=None)
def test_neither_a_tighter_limit_nor_a_higher_confidence_admits_more(limit, tighter, confidence, surer, kind):
    def admits(limit, confidence):
        field = {"deadline": limit} if kind == "time" else {"budget_usd": limit / 600}
        return judged(with_limits(**field, confidence=confidence)).row.feasible

    loose = admits(limit, confidence)
    assert loose >= admits(max(limit - tighter, 1.0), confidence)
    assert loose >= admits(limit, min(confidence + surer, 0.99))


def test_all_limits_hold_at_once_and_each_broken_one_is_named():
    item = judged(with_limits(deadline=60, memory="512MiB", min_accuracy=0.95))
    assert [violation.key for violation in item.violations] == ["deadline", "memory", "min_accuracy"]
    assert item.row.infeasible_because.count(";") == 2
    late, *others = [violation.excess for violation in item.violations]
    assert late == pytest.approx(10 * 1.1 ** (Z80 / Z90) - 1)
    assert item.excess == pytest.approx(late + sum(others)) and min(others) > 0


@pytest.mark.parametrize(
    ("constraints", "quantity"),
    [({"budget_usd": 9}, "cost_usd"), ({"memory": "4GiB"}, "memory_bytes"), ({"min_accuracy": 0.1}, "accuracy")],
)
def test_a_limit_that_cannot_be_checked_is_not_taken_as_kept(constraints, quantity):
    item = judged(with_limits(**constraints), **{quantity: None})
    assert "cannot be checked" in item.row.infeasible_because and item.violations[0].excess is None


def test_unknown_memory_is_no_obstacle_where_the_user_set_no_limit():
    assert judged(memory_bytes=None).row.feasible


@pytest.mark.parametrize("quantity", ["time_to_train_s", "node_hours"])
@pytest.mark.parametrize("value", [None, 0.0])
def test_a_row_without_time_or_expense_is_never_a_bargain(quantity, value):
    item = judged(**{quantity: value})
    assert not item.row.feasible and "could not be forecast" in item.row.infeasible_because


def test_a_method_that_needs_more_processes_is_not_planned_on_fewer():
    one, two = (
        judged(candidate=Candidate(nodes=1, processes_per_node=count, local_batch=64, mitigation=("dual-batch",)))
        for count in (1, 2)
    )
    assert not one.row.feasible and two.row.feasible
    assert one.row.infeasible_because == "'dual-batch' needs 2 processes at least, and there is 1"
    assert [violation.key for violation in one.violations] == ["mitigation"]


def test_a_batch_above_the_data_set_says_so_and_nothing_else():
    item = judged(with_limits(deadline=1), batch=256, samples=100)
    assert item.row.infeasible_because == "global batch 256 is larger than the data set of 100 training samples"


@pytest.mark.parametrize(("local_batch", "samples", "feasible"), [(1, 1001, False), (1, 1000, True), (2, 1001, True)])
def test_a_last_step_that_leaves_a_process_idle_is_not_planned(local_batch, samples, feasible):
    candidate = Candidate(nodes=1, processes_per_node=4, local_batch=local_batch)
    item = judged(samples=samples, candidate=candidate)
    assert item.row.feasible is feasible
    layout = Layout(processes=4, local_batch=local_batch)
    if feasible:
        assert all(micro_batch_sizes(size, layout, rank=3) for size in step_sizes(samples, layout))
    else:
        assert "the last step of an epoch has 1 sample, which" in item.row.infeasible_because
        with pytest.raises(InputError, match="without any"):
            [micro_batch_sizes(size, layout, rank=3) for size in step_sizes(samples, layout)]


def test_a_target_that_is_not_expected_is_infeasible_with_its_chance():
    asked = job(target={"value": 0.9}, recipe={"epochs": 5})
    item = judged(asked, chance=0.12)
    assert item.row.infeasible_because == "target accuracy 0.9 is not expected within 5 epochs (chance 0.12)"
    assert judged(asked, chance=0.5).row.feasible and judged(asked, chance=None).row.feasible
    assert judged(chance=0.12).row.feasible  # no target, nothing to reach


@pytest.mark.parametrize(
    ("higher", "worst", "feasible"), [(True, 0.91, False), (True, 0.9, True), (False, 0.89, False)]
)
def test_accuracy_is_held_against_the_reference_in_the_metrics_own_direction(higher, worst, feasible):
    assert judged(worst=worst, higher=higher).row.feasible is feasible


def test_the_margin_is_a_point_of_accuracy_and_a_hundredth_of_any_other_metric():
    assert accuracy_slack(profile(), 0.8) == 0.01
    assert accuracy_slack(profile(higher_is_better=False), 20.0) == pytest.approx(0.2)


def test_a_budget_without_a_price_is_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"constraints.budget_usd: 20 .*cluster.price_per_node_hour"):
        check_request(job(constraints={"budget_usd": 20}), profile())
    check_request(job(constraints={"budget_usd": 20}, cluster={"spot_price_per_node_hour": 1.0}), profile())


def test_a_least_accuracy_does_not_fit_a_metric_that_is_better_when_lower():
    with pytest.raises(InputError, match="better when lower"):
        check_request(job(constraints={"min_accuracy": 0.5}), profile(higher_is_better=False))


def test_the_tighter_of_the_machines_memory_and_the_users_holds():
    host = profile(memory_bytes=10 * GIB).hardware
    card = profile(device="cuda", device_memory_bytes=10 * GIB).hardware
    unknown = profile(device="cuda").hardware
    assert memory_limit(job(), host, 3).size_bytes == int(3 * GIB)
    assert memory_limit(job(), card, 3).size_bytes == int(9.2 * GIB)
    assert memory_limit(job(), unknown, 3) is None
    assert memory_limit(job(constraints={"memory": "2GiB"}), host, 3).by_user
    assert not memory_limit(job(constraints={"memory": "20GiB"}), host, 3).by_user


def test_a_judged_row_keeps_its_forecast_and_is_valid_json():
    item = judged(with_limits(deadline=60))
    assert Row.from_dict(json.loads(json.dumps(item.row.to_dict(), allow_nan=False)))["accuracy"].value == 0.9
    assert isinstance(job(target={"value": 0.9}).target, Target)


def test_every_stage_has_to_give_the_network_enough_samples_at_once():
    def staged(first: int, begins: int) -> Candidate:
        shape = {"nodes": 1, "processes_per_node": 1, "accumulation": 1}
        stages = (
            Stage(from_samples=0, local_batch=first, **shape),
            Stage(from_samples=begins, local_batch=64, **shape),
        )
        return Candidate(nodes=1, processes_per_node=1, local_batch=64, stages=stages)

    # A first stage that ends within an epoch never takes the epoch's tail of a single sample.
    assert _fewest_at_once(staged(16, 160), 64 * 10) == 16
    assert _fewest_at_once(staged(2, 200), 641) == 2
    # 441 samples are left of the epoch that the second begins in: 6 of 64 and a tail of 57; whole epochs share theirs.
    assert _fewest_at_once(staged(50, 200), 641) == 32
    assert _fewest_at_once(staged(3, 641), 641) == 2


@pytest.mark.parametrize("best", [0.95, 0.82, 0.7, 0.55, 0.5])
def test_the_chance_that_a_target_needs_never_falls_as_the_confidence_rises(best):
    needed = [least_chance(best, confidence / 100) for confidence in range(50, 100)]
    assert needed == sorted(needed) and needed[0] == 0.5 and needed[-1] == max(0.5, round(best - 0.05, 9))


def test_a_target_in_doubt_rules_out_only_what_is_clearly_less_sure_than_the_surest():
    asked = job(target={"value": 0.9}, recipe={"epochs": 5})
    assert judged(asked, chance=0.66, best=0.7).row.feasible
    item = judged(asked, chance=0.6, best=0.7)
    assert "with a chance of 60 % only, constraints.confidence asks for 80 %; the surest of those tried has 70 %" in (
        item.row.infeasible_because
    )
    assert "lower constraints.confidence to 0.6" in item.violations[0].remedy
    lower = job(target={"value": 0.9}, recipe={"epochs": 5}, constraints={"confidence": 0.6})
    assert judged(lower, chance=0.6, best=0.7).row.feasible
