from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from history_factories import make_history, make_outcome
from hypothesis import given
from hypothesis import strategies as st

from tula_core.history import adopt, retrain
from tula_core.history.evidence import gather
from tula_core.history.fitting import shrunk_bias, spread
from tula_core.records import Correction, Corrections, MethodChange, Outcome
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import champion, corrections_of

V2 = Corrections(
    schema_version=1,
    version=2,
    outcomes=9,
    jobs=3,
    by_quantity={name: Correction(log_bias=0.4, log_sd=0.1, outcomes=9) for name in ("step_time_s", "time_to_train_s")},
)


def lookup(label: str) -> Corrections | None:
    return {BUILTIN.label: BUILTIN, V2.label: V2}.get(label)


def test_a_bias_that_all_jobs_share_is_learnt_and_promoted() -> None:
    report = retrain(make_history(1.5, 1.45, 1.55), BUILTIN, lookup=lookup)
    assert report.promoted and report.reason.startswith("promoted: on workloads left out the error of step time and")
    assert report.challenger is not None
    assert (report.challenger.outcomes, report.challenger.jobs, report.outcomes, report.jobs) == (9, 3, 9, 3)
    learnt = report.challenger.by_quantity["step_time_s"]
    assert 0.4 * math.log(1.5) < learnt.log_bias < math.log(1.5)
    assert learnt.log_sd > abs(math.log(1.5) - learnt.log_bias) * 0.9
    assert report.challenger_error["step_time_s"] < 0.5 * report.champion_error["step_time_s"]
    assert report.challenger.by_quantity["memory_bytes"].log_bias == 0


def test_a_bias_of_one_job_alone_is_not_promoted() -> None:
    report = retrain(make_history(2.0, 1.0, 0.6), BUILTIN, lookup=lookup)
    assert not report.promoted and report.challenger is not None
    assert report.reason.startswith("not promoted: on workloads left out")


def test_a_gain_in_time_does_not_pay_for_a_loss_elsewhere() -> None:
    history = [
        replace(outcome, actual={**outcome.actual, "accuracy": accuracy})
        for outcome, accuracy in zip(make_history(1.5, 1.5, 1.5), [0.9] * 3 + [0.5] * 3 + [0.48] * 3, strict=True)
    ]
    report = retrain(history, BUILTIN, lookup=lookup)
    assert not report.promoted or report.challenger_error["accuracy"] <= report.champion_error["accuracy"] + 0.06
    opposite = [
        replace(outcome, actual={**outcome.actual, "accuracy": 0.9 * factor})
        for outcome, factor in zip(make_history(1.5, 1.5, workloads=("a", "b")), [0.4] * 3 + [1.1] * 3, strict=True)
    ]
    report = retrain(opposite, BUILTIN, lookup=lookup)
    assert not report.promoted and "others get worse: accuracy" in report.reason


@pytest.mark.parametrize(
    "history",
    [[], make_history(1.5, 1.5, workloads=("a", "b"), repeat=1), make_history(1.5, workloads=("a",), repeat=9)],
)
def test_with_little_evidence_nothing_is_learnt(history: list[Outcome]) -> None:
    report = retrain(history, BUILTIN, lookup=lookup)
    assert (report.challenger, report.promoted) == (None, False)
    assert "are too few" in report.reason and "at least 4 outcomes of 2 workloads" in report.reason


def test_failed_runs_are_counted_and_teach_nothing() -> None:
    history = make_history(1.5, 1.5, 1.5)
    failed = [
        make_outcome(f"f{n}", status=status, failure="x", factors={"step_time_s": 50.0})
        for n, status in enumerate(["FAILED", "KILLED"])
    ]
    report = retrain(history + failed, BUILTIN, lookup=lookup)
    assert report.failed == 2 and "2 failed or killed" in report.reason
    assert report.challenger == retrain(history, BUILTIN, lookup=lookup).challenger


def test_what_a_promoted_version_made_right_is_not_learnt_away() -> None:
    """The truth is 1.5 times the uncorrected model; v2 forecasts carry exp(0.4) already."""
    corrected = {"step_time_s": 0.02 * math.exp(0.4), "time_to_train_s": 100.0 * math.exp(0.4)}
    by_v2 = make_history(1.5, 1.5, 1.5, predicted=corrected, predictor=V2.label)
    plain = make_history(1.5, 1.5, 1.5)
    ratios = gather(by_v2, lookup).log_ratios["step_time_s"]["a"]
    assert ratios == pytest.approx(gather(plain, lookup).log_ratios["step_time_s"]["a"])
    report = retrain(by_v2, V2, lookup=lookup)
    assert not report.promoted
    assert report.champion_error["step_time_s"] == pytest.approx(math.log(1.515) - 0.4, abs=1e-9)


def test_outcomes_of_an_unknown_version_are_not_used() -> None:
    strange = make_history(3.0, 3.0, 3.0, predictor="tula-predictor v7 (of elsewhere)")
    report = retrain(strange, BUILTIN, lookup=lookup)
    assert (report.outcomes, report.unattributed, report.promoted) == (0, 9, False)
    assert "9 by predictor versions that cannot be found" in report.reason


def test_time_with_lost_attempts_and_given_epochs_are_no_evidence() -> None:
    evidence = gather([make_outcome(attempt=2, target_reached=None)], lookup)
    assert evidence.log_ratios["time_to_train_s"] == {} and evidence.log_ratios["epochs"] == {}
    assert evidence.log_ratios["step_time_s"] == {"digits-cnn": (0.0,)}


def test_equal_outcomes_in_any_order_give_an_equal_report() -> None:
    history = make_history(1.5, 1.4, 1.6)
    assert retrain(history, BUILTIN, lookup=lookup) == retrain(reversed(history), BUILTIN, lookup=lookup)


def test_nothing_new_is_no_challenger() -> None:
    history = make_history(1.5, 1.45, 1.55)
    learnt = retrain(history, BUILTIN, lookup=lookup).challenger
    assert learnt is not None
    again = retrain(history, learnt, lookup=lookup)
    assert again.challenger is None and "nothing that tula-predictor v2" in again.reason


ratios = st.lists(st.floats(-3, 3), min_size=1, max_size=6)


@given(st.dictionaries(st.sampled_from("abcde"), ratios, min_size=1))
def test_a_correction_lies_between_none_and_the_evidence(by_job: dict[str, list[float]]) -> None:
    every = [ratio for job in by_job.values() for ratio in job]
    bias = shrunk_bias(by_job)
    assert min(0.0, *every) <= bias <= max(0.0, *every)
    assert 0 <= spread(every, bias) < 10
    mirrored = {job: [-ratio for ratio in values] for job, values in by_job.items()}
    assert shrunk_bias(mirrored) == pytest.approx(-bias)


def test_more_evidence_is_believed_more() -> None:
    few, many = shrunk_bias({"a": [0.5]}), shrunk_bias({job: [0.5] * 10 for job in "abcdefgh"})
    assert 0 < few < 0.2 < 0.4 < many < 0.5


def test_one_wild_run_hardly_matters() -> None:
    calm = {"a": [0.2, 0.21, 0.19], "b": [0.2, 0.22, 0.18]}
    assert shrunk_bias({**calm, "a": [0.2, 0.21, 3.0]}) == pytest.approx(shrunk_bias(calm), abs=0.01)


def test_a_winner_is_registered_promoted_and_used(home: Path) -> None:
    report = adopt(retrain(make_history(1.5, 1.45, 1.55), champion()))
    assert report.challenger is not None and report.challenger.version == 2
    assert champion() == report.challenger
    assert corrections_of(report.challenger.label) == report.challenger
    loser = adopt(replace(report, promoted=False))
    assert loser.challenger is not None and loser.challenger.version == 3
    assert champion().version == 2
    assert adopt(retrain([], champion())).challenger is None


def test_a_training_time_that_holds_other_corrections_is_no_evidence() -> None:
    learnt = {"step_time_s": Correction(log_bias=0.3, log_sd=0.1, outcomes=4)}
    version = replace(BUILTIN, version=2, outcomes=4, jobs=2, by_quantity=learnt)
    found = gather(make_history(1.2, 1.2, 1.2, predictor=version.label), lambda label: version)
    assert not found.log_ratios["time_to_train_s"]
    own = {**learnt, "time_to_train_s": Correction(log_bias=0.4, log_sd=0.1, outcomes=4)}
    version = replace(version, by_quantity=own)
    ratios = gather(make_history(1.2, 1.2, 1.2, predictor=version.label), lambda label: version).log_ratios
    assert ratios["time_to_train_s"]["a"][0] == pytest.approx(math.log(1.2) + 0.4)


def test_a_run_that_missed_its_target_says_nothing_of_epochs() -> None:
    missed = make_outcome("1", target_reached=False, factors={"epochs": 1.0})
    assert not gather([missed], lambda label: BUILTIN).log_ratios.get("epochs")
    assert gather([missed], lambda label: BUILTIN).log_ratios["step_time_s"]


def test_the_recorded_report_holds_the_errors_that_are_shown() -> None:
    report = retrain(make_history(1.5, 1.45, 1.55), BUILTIN)
    told = report.to_dict()
    assert told["champion_error_pct"]["step_time_s"] == pytest.approx(
        100 * math.expm1(report.champion_error["step_time_s"])
    )
    assert "champion_error" not in told


def test_runs_in_another_precision_teach_nothing_of_the_recipes():
    own = make_history(1.3, 1.3, 1.3)
    apart = make_history(9.0, 9.0, 9.0, precision="bf16")
    others = [replace(outcome, job_id=f"{outcome.job_id}-bf16") for outcome in apart]
    alone, mixed = (gather(outcomes, lambda label: BUILTIN) for outcomes in (own, [*own, *others]))
    assert mixed.log_ratios == alone.log_ratios
    assert (alone.apart, mixed.apart) == (0, len(others))


def test_runs_that_changed_their_methods_are_credited_to_none_of_them() -> None:
    own = make_history(1.3, 1.3, 1.3)
    change = MethodChange(
        samples=0,
        epochs=0.0,
        seen_at_samples=100,
        dropped=("linear-lr",),
        taken=(),
        dropped_batch=512,
        taken_batch=64,
        cause="diverged",
        because="the loss diverged",
    )
    others = [
        replace(outcome, job_id=f"{outcome.job_id}-changed", method_changes=(change,))
        for outcome in make_history(9.0, 9.0, 9.0)
    ]
    alone, mixed = (gather(outcomes, lambda label: BUILTIN) for outcomes in (own, [*own, *others]))
    assert mixed.log_ratios == alone.log_ratios
    assert (alone.changed, mixed.changed) == (0, len(others))
