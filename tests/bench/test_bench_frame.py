from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tula_core.bench import KINDS, discover, load_kind
from tula_core.bench.page import markdown, page
from tula_core.bench.run import run_bench, write_predictions
from tula_core.bench.tables import check_positive, read_table, read_tables
from tula_core.errors import InputError
from tula_core.plots.data import coverage, error_curve


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(KINDS, "tiny", "fake_bench_kind")
    monkeypatch.setitem(discover._SIGNS, "tiny", lambda folder: (folder / "tiny.csv").is_file())
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "tiny.csv").write_text("id,x,y\na,1,1\nb,2,4\nc,4,2\n")
    return folder


def test_every_kind_is_what_its_name_says() -> None:
    for name in KINDS:
        kind = load_kind(name)
        assert kind.name == name and kind.summary and kind.source
        assert len(set(kind.columns)) == len(kind.columns)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="step-time"):
        load_kind("steptime")


def test_predictions_are_written_byte_for_byte_alike(tiny: Path, tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        write_predictions(run_bench("tiny", tiny).predictions, tmp_path / name)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert pd.read_csv(tmp_path / "one.csv")["high"].tolist() == [2, 4, 8]


def test_the_verb_writes_predictions_tables_picture_and_page(tiny: Path, tmp_path: Path) -> None:
    out, plots, text = tmp_path / "out.csv", tmp_path / "plots", tmp_path / "page.md"
    command = ["bench", "tiny", "--data", str(tiny), "--out", str(out), "--plot", str(plots), "--page", str(text)]
    done = CliRunner().invoke(app, [*command, "--leave-out"])
    assert done.exit_code == 0, done.output
    assert "3 predictions of tiny" in done.output and "Left out" in done.output
    assert (plots / "tiny.png").read_bytes()[:4] == b"\x89PNG"
    assert "## tiny" in text.read_text() and "| mape_pct |" in text.read_text()


def test_all_finds_the_kinds_that_a_folder_holds(tiny: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "all", "--data", str(tiny.parent), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny.csv"]


def test_all_goes_on_beyond_a_kind_whose_files_are_wrong(tiny: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "other"
    wrong.mkdir()
    (wrong / "rcp_tasks.csv").write_text("task_id\n1\n")
    out, text = tmp_path / "out", tmp_path / "page.md"
    command = ["bench", "all", "--data", str(tmp_path), "--out", str(out), "--page", str(text)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2, done.output
    assert "error: epochs: --data: " in done.stderr and "1 of 2 kinds could not be predicted: epochs" in done.stderr
    assert [path.name for path in out.iterdir()] == ["tiny.csv"]
    assert "## tiny" in text.read_text() and "without epochs" in done.stdout


def test_without_answers_no_error_is_told(tiny: Path, tmp_path: Path) -> None:
    (tiny / "tiny.csv").write_text("id,x\na,1\n")
    done = CliRunner().invoke(app, ["bench", "tiny", "--data", str(tiny), "--plot", str(tmp_path / "p")])
    assert done.exit_code == 0 and "holds no answers" in done.output and "nothing to draw" in done.output


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "cannot be read"),
        ("id\na\n", "lacks the column x"),
        ("id,x\n", "no rows"),
        ("id,x\na,nan\n", "x must be a number above 0"),
        ("id,x\na,1\nb,-2\n", "data row 2"),
        ("id,x\na,inf\n", "x must be a number above 0"),
        ("id,x\na,fast\n", "'fast'"),
    ],
)
def test_a_table_that_is_not_usable_is_refused_in_one_line(tiny: Path, text: str, match: str) -> None:
    (tiny / "tiny.csv").write_text(text)
    with pytest.raises(InputError, match=match):
        run_bench("tiny", tiny)


def test_a_missing_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        read_tables(tmp_path / "none", "*.csv")
    with pytest.raises(InputError, match=r"holds no \*.csv"):
        read_tables(tmp_path, "*.csv")
    with pytest.raises(InputError, match="holds no some.csv"):
        read_table(tmp_path / "some.csv", ())
    with pytest.raises(InputError, match="hold no measured data"):
        discover.find_folders(tmp_path)
    assert discover.folder_of(tmp_path, "epochs") == tmp_path
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "rcp_tasks.csv").touch()
    assert discover.folder_of(tmp_path, "epochs") == tmp_path / "inner"
    check_positive(pd.DataFrame({"x": [1, 2.5]}), ("x",), "fine")


def test_the_error_curve_is_the_empirical_distribution() -> None:
    curve = error_curve(np.array([1.0, 2.0, 4.0, 5.0]), np.array([1.1, 2.0, 3.0, 10.0]))
    assert curve.error_pct == pytest.approx([0, 10, 25, 100]) and curve.share[-1] == 1
    assert curve.median_pct == pytest.approx(17.5)


def test_coverage_lies_on_the_diagonal_for_log_normal_truths_and_counts_the_90_interval() -> None:
    actual = np.exp(np.random.default_rng(1).normal(0.0, 0.2, 20_000))
    one = np.ones_like(actual)
    width = np.exp(0.2 * 1.6448536269514722)
    found = coverage(actual, one, one / width, one * width)
    assert found.observed == pytest.approx(found.stated, abs=0.02)
    inside = np.mean((actual >= 1 / width) & (actual <= width))
    assert np.interp(0.9, found.stated, found.observed) == pytest.approx(inside, abs=0.02)


def test_the_page_shows_every_table_and_leaves_missing_figures_empty(tiny: Path) -> None:
    text = page([run_bench("tiny", tiny, leave_out=True)])
    assert "### Errors" in text and "### Left out" in text and "One row each." in text
    assert markdown(["a", "b"], [["1", ""]]).splitlines()[-1] == "| 1 |  |"
