"""The benchmarks are run by hand; here only that they still run."""

import json
from pathlib import Path

import pytest

from tests.benchmarks import generalization, loop_overhead, model_speed, predicted_actual


def test_the_loop_overhead_is_printed_as_ratios_to_the_bare_loop(capsys: pytest.CaptureFixture[str]) -> None:
    loop_overhead.main(["--job", "digits-cnn", "--steps", "2", "--blocks", "3", "--batch", "32"])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line[2:16].strip() for line in lines] == ["bare", *loop_overhead.METHODS]
    assert all(line.count("+-") == 2 for line in lines[1:])
    assert [line.endswith("(bar 1.03)") for line in lines] == [False, True, False, False]


def test_a_ratio_is_of_blocks_side_by_side() -> None:
    bare = [1.0, 2.0, 1.0, 4.0, 1.0]  # a machine whose speed changes
    assert loop_overhead.ratio([1.1 * value for value in bare], bare) == (pytest.approx(1.1), pytest.approx(0.0))
    middle, error = loop_overhead.ratio([1.0, 2.2, 1.2, 40.0, 1.1], bare)
    assert middle == pytest.approx(1.1) and 0.0 < error < 0.1


def test_predicted_against_actual_is_printed_for_what_was_not_profiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TULA_HOME", str(tmp_path))
    short = ["--set", "recipe.epochs=1"]
    predicted_actual.main(["--job", "digits-cnn", "--configurations", "1", "--probe", "20", "--processes", "1", *short])
    lines = capsys.readouterr().out.splitlines()
    if "are kept from the models" in lines[0]:  # where the probe timed every configuration
        lines = lines[1:]
    assert lines[0].startswith("1 x 1") and lines[0].count("actual") == 2
    assert lines[1].startswith("step: mean error") and lines[2].startswith("total: mean error")
    assert lines[3].startswith("probe")


def test_the_speed_of_the_models_is_printed_beside_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    model_speed.main(["--candidates", "300", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["fit", "step-time", "columns", "rows", "plan", "plan"]
    assert all(float(line.split()[1]) > 0 for line in lines[1:])


def test_the_generalization_benchmark_trains_and_writes_its_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    short = ["--quick", "--jobs", "digits", "--methods", "plain", "--seeds", "1", "--out", str(out)]
    assert generalization.main(short) == 0
    printed = capsys.readouterr().out
    assert "| small batch |" in printed and "| large batch, the small batch's rate |" in printed
    assert all(out.with_suffix(suffix).stat().st_size > 0 for suffix in (".md", ".csv", ".png"))
    results = [json.loads(line)["result"] for line in out.read_text().splitlines()]
    assert len(results) == 5 and all(result["accuracy"] > 0.2 for result in results)
