"""What runs say of a single method: how much of the gap to the best metric is left, beside what its card says."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from history_factories import make_correcting, make_method_history, make_method_outcome, make_outcome
from hypothesis import given
from hypothesis import strategies as st

from tula_core.history import retrain
from tula_core.history.evidence import gather
from tula_core.history.fitting import Errors, Fitted, fit
from tula_core.history.methods import MethodRun, fit_methods, method_run, today
from tula_core.history.verdict import verdict
from tula_core.mitigations import Packages, effects_of, taught
from tula_core.records import Corrections, Interval, MethodChange, MitigationEffect, Outcome
from tula_core.records.corrections import BUILTIN, MethodCorrection

CARD = today("growth")
assert CARD is not None
RESPONSE = 0.15  # of ln of the gap to one standard deviation of the card, as the factories have it


def lookup(label: str) -> Corrections:
    return BUILTIN


def learnt(outcomes: list[Outcome], method: str = "growth") -> MethodCorrection:
    return fit(gather(outcomes, lookup)).by_method[method]


def scattered(mean: float, sd: float, count: int) -> list[float]:
    chance = random.Random(7)
    return [mean + chance.gauss(0.0, sd) for _ in range(count)]


@pytest.mark.parametrize("truth", [-0.2, 0.0, 0.25])
def test_a_shift_that_many_workloads_share_is_recovered(truth: float) -> None:
    found = learnt(make_method_history(*scattered(truth, 0.05, 40)))
    assert found.shift * RESPONSE == pytest.approx(truth, abs=0.04)
    assert found.spread < 0.7
    assert (found.outcomes, found.jobs, found.card) == (40, 40, CARD)


def one_truth(chance: random.Random, jobs: int, noise: float) -> tuple[float, list[MethodRun]]:
    """Return by how much a card is off in another job, and runs: their forecasts miss by 0.12, all by up to 0.1."""
    mean, between = chance.gauss(0.0, math.sqrt(0.5)), math.sqrt(0.5)
    common, runs = chance.gauss(0.0, 0.1 / math.sqrt(1 + jobs)), []
    for job in range(jobs):
        response = math.exp(chance.uniform(math.log(0.05), 0.0))
        missed = response * (mean + chance.gauss(0.0, between)) + common + chance.gauss(0.0, 0.12)
        runs.append(
            MethodRun(
                workload=str(job),
                method="growth",
                card=CARD,
                best=1.0,
                higher_is_better=True,
                gap=0.1,
                response=response,
                noise_sd=noise,
                metric=1.0 - 0.1 * math.exp(missed),
            )
        )
    return mean + chance.gauss(0.0, between), runs


@pytest.mark.parametrize("noise", [0.06, 0.12, 0.24])
@pytest.mark.parametrize("jobs", [1, 3, 10, 30])
def test_the_interval_holds_for_a_job_that_was_not_seen(jobs: int, noise: float) -> None:
    """Also where a forecast states its own noise at half or at twice its size."""
    chance, inside, errors, before = random.Random(jobs), 0, 0.0, 0.0
    for _ in range(300):
        truth, runs = one_truth(chance, jobs, noise)
        found = fit_methods(runs, 0.0, jobs)["growth"]
        inside += abs(truth - found.shift) < 1.645 * found.spread
        errors += (truth - found.shift) ** 2
        before += truth**2
    assert 0.83 <= inside / 300 <= 0.98
    assert errors < before


def test_one_workload_moves_little_however_often_it_ran() -> None:
    once = learnt(make_method_history(0.3))
    often = learnt(make_method_history(0.3, repeat=30))
    assert 0.0 < once.shift * RESPONSE < 0.12 and often.shift * RESPONSE < 0.12
    assert often.spread > 0.8


def test_one_odd_run_or_workload_does_not_decide() -> None:
    calm = [0.1] * 9
    whole = learnt(make_method_history(*calm))
    odd = learnt(make_method_history(*calm[:-1], 2.0))
    assert odd.shift == pytest.approx(whole.shift, abs=0.1)
    wild = learnt([*make_method_history(*calm, repeat=3), make_method_outcome("wild", log_gap=2.0, workload="w000")])
    assert wild.shift == pytest.approx(learnt(make_method_history(*calm, repeat=3)).shift, abs=0.01)


def test_contradictory_workloads_widen_and_agreeing_ones_narrow() -> None:
    torn = learnt(make_method_history(*[0.6, -0.6] * 5))
    agreed = learnt(make_method_history(*[0.1] * 10))
    assert torn.spread > 1.5 and abs(torn.shift) < 0.02
    assert agreed.spread < 0.8
    wide, narrow = torn.refine(), agreed.refine()
    assert narrow.log_work_sd < 0.8 * CARD.log_work_sd and wide.log_work_sd > 1.5 * CARD.log_work_sd
    assert narrow.log_work == pytest.approx(CARD.log_work + agreed.shift * CARD.log_work_sd)
    assert (narrow.log_gap, narrow.log_gap_sd, narrow.rate_power) == (0.0, 0.0, CARD.rate_power)


def test_runs_count_by_how_much_the_forecast_answers_to_the_card() -> None:
    """The same miss near the reference batch, where a method can hardly err, is noise."""
    far = learnt([make_method_outcome(f"{n}", log_gap=0.2, workload=f"w{n}", response=0.4) for n in range(6)])
    near = learnt([make_method_outcome(f"{n}", log_gap=0.2, workload=f"w{n}", response=0.03) for n in range(6)])
    assert far.shift * 0.4 > 0.1 and near.shift * 0.03 < 0.02
    assert gather([make_method_outcome("1", response=0.001)], lookup).unclear == 1


def test_what_all_methods_miss_in_common_is_not_laid_to_one() -> None:
    common = -0.02  # a fifth of the gap that is forecast
    both = fit(gather(make_method_history(*[0.0] * 12, common=common), lookup))
    assert abs(both.by_method["growth"].shift) * RESPONSE < 0.03
    assert both.bias("accuracy") == pytest.approx(common, rel=0.2)
    alone = fit(gather(make_method_history(*[0.2] * 12), lookup))
    assert alone.by_method["growth"].shift * RESPONSE > 0.14 and abs(alone.bias("accuracy")) < 0.005


def test_without_a_run_to_compare_with_a_miss_is_shared_out() -> None:
    """It may be the method's or that of all forecasts; what is left of it is corrected all the same."""
    alone = fit(gather(make_method_history(*[0.2] * 12, plain=False), lookup))
    shift = alone.by_method["growth"].shift * RESPONSE
    assert 0.03 < shift < 0.13
    forecast = (1.0 - 0.1 * math.exp(shift)) * math.exp(alone.bias("accuracy"))
    assert forecast == pytest.approx(1.0 - 0.1 * math.exp(0.2), abs=0.003)


def test_what_a_version_learnt_is_undone_before_it_is_learnt_again() -> None:
    known = MethodCorrection(shift=0.2 / RESPONSE, spread=0.7, outcomes=9, jobs=3, card=CARD)
    version = replace(BUILTIN, version=2, outcomes=9, jobs=3, by_method={"growth": known})
    forecast = 1.0 - 0.1 * math.exp(0.2)
    right = [
        replace(
            outcome,
            expected_end=Interval(value=forecast, low=forecast - 0.02, high=forecast + 0.02),
            predictor=version.label,
        )
        for outcome in make_method_history(*[0.2] * 6, plain=False)
    ]
    [ratio, *_] = [run.log_gap(0.0) for run in gather(right, lambda label: version).method_runs]
    assert ratio == pytest.approx(0.2)
    other = replace(version, by_method={"growth": replace(known, card=replace(CARD, log_work=0.3))})
    [ratio, *_] = [run.log_gap(0.0) for run in gather(right, lambda label: other).method_runs]
    assert ratio == pytest.approx(0.0), "what was learnt beside another card was not part of the forecast"


def test_the_interval_of_a_corrected_forecast_is_taken_back_with_it() -> None:
    factor = math.exp(0.04)
    version = make_correcting("accuracy", 0.04)
    [plain, *_] = make_method_history(*[0.2] * 6, plain=False)
    end = Interval(value=0.9, low=0.88, high=0.92)
    corrected = Interval(value=0.9 * factor, low=0.88 * factor, high=0.92 * factor)
    runs = [method_run(replace(plain, expected_end=each), by) for each, by in ((end, BUILTIN), (corrected, version))]
    assert runs[0] is not None and runs[1] is not None
    assert runs[0].noise_sd == pytest.approx(runs[1].noise_sd) and runs[0].gap == pytest.approx(runs[1].gap)


@pytest.mark.parametrize(
    "changes",
    [
        {"untried": {"growth": MitigationEffect(log_work=0.7, log_work_sd=0.5)}},
        {"mitigation": ("growth", "lars"), "untried": {"growth": CARD, "lars": today("lars")}},
        {"expected_end": None},
        {"metric_best": None},
        {"higher_is_better": None},
        {"metric_best": 0.85},
        {"method_response": None},
        {"method_response": -0.2},
    ],
)
def test_a_run_that_does_not_say_what_one_method_did_is_counted(changes: dict[str, object]) -> None:
    found = gather([make_method_outcome("1", log_gap=0.5, **changes)], lookup)
    assert (found.method_runs, found.unclear, found.log_ratios["accuracy"]) == ((), 1, {})
    assert found.log_ratios["step_time_s"] == {"digits-cnn": (0.0,)}


@pytest.mark.parametrize(
    "changes", [{"local_batch": 16}, {"reference_batch": None}, {"untried": {}}, {"mitigation": ("linear-lr",)}]
)
def test_small_batches_old_runs_and_methods_of_pilots_are_common_evidence(changes: dict[str, object]) -> None:
    found = gather([make_method_outcome("1", log_gap=0.5, **changes)], lookup)
    assert (found.method_runs, found.unclear) == ((), 0) and len(found.log_ratios["accuracy"]["digits-cnn"]) == 1


def test_epochs_to_a_target_hold_what_the_method_did_and_teach_nothing_else() -> None:
    run = make_method_outcome("1", target_reached=True, factors={"epochs": 2.0, "time_to_train_s": 2.0})
    found = gather([run], lookup)
    assert found.log_ratios["epochs"] == found.log_ratios["time_to_train_s"] == {} and len(found.method_runs) == 1
    budget = gather([replace(run, target_reached=None)], lookup)
    assert budget.log_ratios["time_to_train_s"]["digits-cnn"] == pytest.approx((math.log(2.0),))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"status": "KILLED", "failure": "gone"}, "failed"),
        ({"status": "FAILED", "failure": "diverged"}, "failed"),
        ({"precision": "bf16"}, "apart"),
    ],
)
def test_runs_that_are_no_outcome_of_the_forecast_teach_nothing(changes: dict[str, object], count: str) -> None:
    found = gather([make_method_outcome("1", log_gap=0.5, **changes)], lookup)
    assert found.method_runs == () and getattr(found, count) == 1


def test_a_resumed_run_and_one_on_other_hardware_teach_of_methods_all_the_same() -> None:
    changed = {"attempt": 3, "hardware": "other", "planned_hardware": "cpu-abc"}
    found = gather([make_method_outcome("1", log_gap=0.5, **changed)], lookup)
    assert len(found.method_runs) == 1 and found.log_ratios["time_to_train_s"] == {}


def test_methods_that_were_replaced_are_counted_by_name_and_said() -> None:
    change = MethodChange(
        samples=0,
        epochs=0.0,
        seen_at_samples=100,
        dropped=("growth",),
        taken=(),
        dropped_batch=512,
        taken_batch=64,
        cause="below forecast",
        because="accuracy was low",
    )
    history = make_method_history(*[0.2] * 6)
    dropped = [make_method_outcome(f"d{n}", mitigation=(), method_changes=(change,)) for n in range(2)]
    report = retrain(history + dropped, BUILTIN, lookup=lookup)
    assert report.replaced == {"growth": 2} and "2 whose methods were replaced on the way" in report.reason
    assert report.challenger == retrain(history, BUILTIN, lookup=lookup).challenger


def test_a_metric_that_is_better_low_has_its_gap_above_the_best() -> None:
    lower = {
        "higher_is_better": False,
        "metric_best": 0.0,
        "expected_end": Interval(value=0.9, low=0.8, high=1.0),
        "factors": {"accuracy": math.exp(0.2)},
    }
    [run] = gather([make_method_outcome("1", **lower)], lookup).method_runs
    assert run.log_gap(0.0) == pytest.approx(0.2) and run.log_ratio(0.2 / RESPONSE) == pytest.approx(0.0)


@given(st.permutations(range(8)))
def test_the_order_of_outcomes_does_not_matter(order: list[int]) -> None:
    history = make_method_history(0.3, -0.1, 0.2, 0.05)
    assert retrain([history[i] for i in order], BUILTIN, lookup=lookup) == retrain(history, BUILTIN, lookup=lookup)


@given(st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=7))
def test_a_shift_lies_between_none_and_the_evidence(shifts: list[float]) -> None:
    found = learnt(make_method_history(*shifts))
    assert min(0.0, *shifts) - 1e-9 <= found.shift * RESPONSE <= max(0.0, *shifts) + 1e-9
    assert 0.0 < found.spread < 6.0 and found.refine().log_work_sd > 0.0


def test_a_challenger_that_learnt_methods_alone_can_win() -> None:
    report = retrain(make_method_history(*scattered(0.3, 0.03, 8)), BUILTIN, lookup=lookup)
    assert report.promoted and report.challenger is not None
    assert "the error of gap to the best metric with growth goes from" in report.reason
    assert report.challenger_method_error["growth"] < 0.5 * report.champion_method_error["growth"]
    assert "growth" in report.challenger.by_method


def test_a_method_that_gets_worse_keeps_a_gain_in_time_from_winning() -> None:
    evidence = gather(make_method_history(0.1, 0.1), lookup)
    old = Errors(by_quantity={"step_time_s": 0.4, "accuracy": 0.01}, by_method={"growth": 0.1, "lars": 0.2})
    new = Errors(by_quantity={"step_time_s": 0.1, "accuracy": 0.01}, by_method={"growth": 0.13, "lars": 0.2})
    promoted, reason = verdict(evidence, old, new)
    assert not promoted and "others get worse: gap to the best metric with growth from 10.5 % to 13.9 %" in reason
    promoted, reason = verdict(evidence, old, replace(new, by_method={"growth": 0.11, "lars": 0.2}))
    assert promoted and reason.startswith("promoted: on workloads left out the error of step time goes from 49.2 %")


def test_no_history_is_todays_forecast() -> None:
    found = Packages.auto("sgd")
    assert taught(found, BUILTIN.by_method) == found
    assert effects_of(taught(found, {})) == effects_of(found)
    assert Fitted.of(BUILTIN) == Fitted()
    assert fit(gather([make_outcome()], lookup)).by_method == {}


def test_what_was_learnt_acts_where_the_card_is_still_the_same() -> None:
    known = learnt(make_method_history(*[0.2] * 8))
    found = Packages.auto("sgd")
    refined = taught(found, {"growth": known, "seesaw": known, "unheard-of": known})
    assert effects_of(refined) == {**effects_of(found), "growth": known.refine()}
    assert refined.first(2).learnt == refined.unaided.learnt == {"growth": known}
    stale = replace(known, card=replace(CARD, log_work=0.1))
    assert effects_of(taught(found, {"growth": stale})) == effects_of(found)
    named = Packages.alone(("growth",))
    assert effects_of(taught(named, {"growth": known})) == {}
