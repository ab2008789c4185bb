"""The generalization benchmark without its training: the runs it asks for, how it chooses, what it makes of results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import generalization
from tests.benchmarks.generalization_bars import bars, reference_lines
from tests.benchmarks.generalization_choice import Choice
from tests.benchmarks.generalization_jobs import FINAL, QUICK, TUNE, BenchJob, workload
from tests.benchmarks.generalization_methods import ROWS, Row, chosen_rows
from tests.benchmarks.generalization_report import as_csv, gap_lines, job_table
from tests.benchmarks.generalization_store import Request, Store
from tests.benchmarks.generalization_study import Study
from tests.benchmarks.generalization_summary import averages, cells, gaps
from tests.factories import make_job, make_profile
from tula_core import profiling
from tula_core.errors import InputError
from tula_core.job import Job

DIGITS = QUICK.jobs["digits"]
Accuracy = Callable[[Request], float | None]


def by_the_rule(bench: BenchJob, rate: float, row: Row) -> Choice:
    return Choice(batch=bench.large_batch, methods=("linear-lr", "warmup"))


def made(path: Path, rows: list[Row], accuracy: Accuracy, steps: float = 60, bench: BenchJob = DIGITS) -> Study:
    """Return a study whose runs gave what a function says, and the rounds it took in ``study.rounds``."""
    store = Store(path)
    study = Study(QUICK, [bench], rows, store, choose=by_the_rule, seeds=2)
    for _ in range(9):
        missing = study.missing()
        if not missing:
            return study
        for request in missing:
            result = {"accuracy": accuracy(request), "train_accuracy": 1.0, "steps": steps, "samples": 1000}
            store.add(request, {**result, "seconds": 1.0, "reductions": 0})
    raise AssertionError("it never ends")


def by_row(**accuracies: float) -> Accuracy:
    return lambda request: accuracies.get(request.row.name, 0.5) + 0.01 * request.seed * (request.split == FINAL)


def test_the_rate_is_the_best_on_the_validation_split_whatever_the_test_set_says(tmp_path: Path) -> None:
    def accuracy(request: Request) -> float:
        best = 0.2 if request.split == TUNE else 0.0125
        return 1.0 - abs(request.rate - best)

    study = made(tmp_path / "r.jsonl", chosen_rows(["plain"]), accuracy)
    assert study.rate(DIGITS, ROWS["small"]) == study.rate(DIGITS, ROWS["plain"]) == 0.2
    assert study.at_edge(DIGITS, ROWS["small"]) and not study.at_edge(DIGITS, ROWS["plain"])


def test_a_rate_that_diverged_and_was_lowered_is_not_chosen(tmp_path: Path) -> None:
    store = Store(tmp_path / "r.jsonl")
    study = Study(QUICK, [DIGITS], chosen_rows(["plain"]), store, choose=by_the_rule, seeds=1)
    for request in study.missing():
        result = {"accuracy": request.rate, "train_accuracy": None, "steps": 60, "samples": 9, "seconds": 1.0}
        store.add(request, {**result, "reductions": int(request.rate == 0.2)})
    assert study.rate(DIGITS, ROWS["small"]) == 0.05


def test_every_tuned_row_has_as_many_rates_and_a_tie_goes_to_the_lower(tmp_path: Path) -> None:
    study = made(tmp_path / "r.jsonl", chosen_rows(None), by_row())
    tuned = [row for row in ROWS.values() if row.rate == "tuned"]
    grids = [study.grid(DIGITS, row, study.batch(DIGITS, row) or 0) for row in tuned]
    assert {len(grid) for grid in grids} == {len(QUICK.factors)}
    assert [study.rate(DIGITS, row) for row in tuned] == [grid[0] for grid in grids]


def test_validation_and_training_images_are_apart_and_the_test_set_is_not_looked_at() -> None:
    tune = workload(Job(name="quick.digits.tune", workload="a.b:c"))
    final = workload(Job(name="quick.digits.final", workload="a.b:c"))
    fit, held, whole = (
        {image.numpy().tobytes() for image in part.images}
        for part in (tune.train_set(), tune.eval_set(), final.train_set())
    )
    assert len(held) == 96 and not fit & held and fit | held == whole


def test_a_control_takes_the_steps_of_the_row_it_controls_and_shares_equal_runs(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    study = made(path, chosen_rows(["tuned", "growth", "growth-control"]), by_row(), steps=120)
    assert study.batch(DIGITS, ROWS["growth-control"]) == 80  # 480 images in 6 steps an epoch
    before = len(path.read_text().splitlines())
    shared = made(path, chosen_rows(["tuned", "auto", "auto-control"]), by_row(), steps=60)
    assert shared.batch(DIGITS, ROWS["auto-control"]) == DIGITS.large_batch
    assert len(path.read_text().splitlines()) == before + 2  # auto alone, for the control is the tuned large batch


def test_differences_are_paired_over_seeds_and_recoveries_hold_against_both_large_batches(tmp_path: Path) -> None:
    rows = chosen_rows(["plain", "tuned", "lars"])
    found = cells(made(tmp_path / "r.jsonl", rows, by_row(small=0.9, plain=0.5, tuned=0.8, lars=0.85)))
    lars = found["digits", "lars"]
    assert lars.to_small is not None and lars.to_small.mean == pytest.approx(-5.0)
    assert lars.to_small.error == pytest.approx(0.0, abs=1e-9) and lars.accuracy.error == pytest.approx(0.5)
    shares = {gap.base.name: gap.closed["lars"] for gap in gaps(found)}
    assert shares == {"plain": pytest.approx(0.875), "tuned": pytest.approx(0.5)}
    assert gap_lines(gaps(found))[1] == "digits, large batch, best tuned rate: 10.00 ± 0.00 points below small batch"
    (mean,) = [item for item in averages(found, [DIGITS]) if item.row.name == "lars"]
    assert (mean.minus_plain, mean.minus_tuned, mean.steps_share) == (pytest.approx(35), pytest.approx(5), 1.0)


def test_a_run_that_diverged_for_good_counts_as_guessing_and_is_named(tmp_path: Path) -> None:
    rows = chosen_rows(["auto"])
    study = made(tmp_path / "r.jsonl", rows, lambda request: None if request.row.name == "auto" else 0.9)
    found = cells(study)
    assert found["digits", "auto"].accuracy.mean == 10.0
    assert "2 of 2 diverged" in job_table(found, "digits") and as_csv(found).count("\n") == 3


@pytest.mark.parametrize(
    ("auto", "verdicts"),
    [(0.9, [True, True, True]), (0.6, [True, False, False]), (0.52, [False, False, False])],
)
def test_the_bars_are_met_or_missed(tmp_path: Path, auto: float, verdicts: list[bool]) -> None:
    def steps(request: Request) -> int:
        return 1000 if request.row.name == "small" else 60

    store = Store(tmp_path / "r.jsonl")
    study = Study(
        QUICK, [DIGITS], chosen_rows(["plain", "tuned", "auto", "auto-control"]), store, choose=by_the_rule, seeds=2
    )
    accuracy = by_row(small=0.9, plain=0.5, tuned=0.7, auto=auto)
    while missing := study.missing():
        for request in missing:
            result = {"accuracy": accuracy(request), "train_accuracy": 1.0, "steps": steps(request), "samples": 9}
            store.add(request, {**result, "seconds": 1.0, "reductions": 0})
    assert [bar.met for bar in bars(study.benches, cells(study))] == verdicts


def test_the_true_gap_is_measured_only_where_both_batches_fit_the_training_set(tmp_path: Path) -> None:
    bench = QUICK.jobs["true-gap"]
    rows = chosen_rows(["plain", "tuned", "auto"])
    study = made(tmp_path / "r.jsonl", rows, by_row(small=0.9, plain=0.8, tuned=0.8, auto=0.86), bench=bench)
    (bar,) = [bar for bar in bars([bench], cells(study)) if bar.text.startswith("true-gap")]
    assert bar.met and bar.found.startswith("60 %")
    low = {
        key: replace(cell, train_accuracy=replace(cell.train_accuracy, mean=90.0)) for key, cell in cells(study).items()
    }
    (bar,) = [bar for bar in bars([bench], low) if bar.text.startswith("true-gap")]
    assert bar.met is None and "no true gap" in bar.found


def test_a_small_batch_below_its_known_figure_is_said(tmp_path: Path) -> None:
    bench = replace(DIGITS, reference_accuracy=0.983)
    study = made(tmp_path / "r.jsonl", chosen_rows(["plain"]), by_row(small=0.9))
    found = cells(study)
    assert "NOT reached, 7.80 below" in reference_lines([bench], found)[0]
    assert "reached within" in reference_lines([replace(bench, reference_accuracy=0.9)], found)[0]


def test_a_file_that_an_interruption_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rows = chosen_rows(["plain"])
    made(path, rows, by_row())
    whole = path.read_text()
    for cut in (1, 20):  # the last line's end alone, and a part of what it says
        path.write_text(whole[:-cut])
        study = Study(QUICK, [DIGITS], rows, Store(path), choose=by_the_rule, seeds=2)
        assert len(study.missing()) == (cut > 1)
        made(path, rows, by_row())
        assert path.read_text() == whole


def test_an_interrupted_benchmark_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(requests: list[Request], store: Store) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generalization, "make_runs", interrupted)
    assert generalization.main(["--quick", "--jobs", "digits", "--out", str(tmp_path / "r.jsonl")]) == 130
    assert "goes on from what is done" in capsys.readouterr().err


def test_what_is_printed_holds_every_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def at_once(requests: list[Request], store: Store) -> None:
        for request in requests:
            result = {"accuracy": 0.9, "train_accuracy": 1.0, "steps": 60, "samples": 9, "seconds": 1.0}
            store.add(request, {**result, "reductions": 0})

    monkeypatch.setattr(generalization, "make_runs", at_once)
    monkeypatch.setattr(profiling, "profile", lambda job, reprofile: (job, make_profile(), False))
    monkeypatch.setattr(profiling, "complete", lambda job, profile: make_job(recipe=job.recipe, target=None))
    out = tmp_path / "r.jsonl"
    assert generalization.main(["--quick", "--jobs", "digits", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    heads = [line for line in printed.splitlines() if line.startswith("#")]
    assert "- digits, auto: batch " in printed and "- digits, auto-large: batch 160 " in printed
    assert "kept with a chance of" in printed
    assert len(heads) == 6 and "short setting" in printed and out.with_suffix(".md").read_text() in printed
    assert printed.count("| auto, batch and methods |") == 3 and "there is no gap to close" in printed


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(InputError, match=r"--out: line 1 .* Name another file"):
        Store(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "digit"], "--jobs: 'digit' is unknown"),
        (["--methods", "larz"], "--methods: 'larz' is unknown"),
        (["--methods", "auto-control"], "takes the steps that 'auto' took"),
        (["--seeds", "0"], "--seeds: 0 is not allowed"),
        (["--out", "table.md"], "would be overwritten"),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TULA_HOME", str(tmp_path))
    assert generalization.main(["--quick", *arguments]) == 2
    assert message in capsys.readouterr().err
