"""Names that look like nothing, answers that are none, and cells that no measurement can hold."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tula_core.bench import load_kind
from tula_core.bench.run import run_bench
from tula_core.errors import InputError


def steps(**changes: object) -> pd.DataFrame:
    """Ten measured steps of one pair, half of them known; columns of ``changes`` replace its own."""
    rows = []
    for number in range(10):
        nodes, batch = 1 + number % 2, 8 * (1 + number // 2)
        rows.append(
            {
                **{"row_id": f"00{number}", "model": "net", "cluster": "here", "nodes": nodes, "replicas": nodes},
                **{"max_per_node": 1, "min_per_node": 1, "local_batch": batch, "global_batch": batch * nodes},
                **{"accum_steps": 0, "step_time_s": 0.1 + 0.01 * batch, "sync_time_s": 0.02 * (nodes - 1)},
                **{"flag": None, "split_p1": "profile" if number < 5 else "test"},
                "split_p2": "profile" if number < 5 else "test_far",
            }
        )
    return pd.DataFrame(rows).astype(object).assign(**changes)


def changed(column: str, row: int, cell: object) -> pd.DataFrame:
    frame = steps()
    frame.loc[row, column] = cell
    return frame


def predict_steps(folder: Path, frame: pd.DataFrame) -> pd.DataFrame:
    frame.to_csv(folder / "steps.csv", index=False)
    return load_kind("step-time").predict(folder)


@pytest.mark.parametrize("name", ["", "NA", "None", "nan"])
def test_a_pair_is_predicted_whatever_its_name(tmp_path: Path, name: str) -> None:
    found = predict_steps(tmp_path, steps(model=name))
    assert found["row_id"].tolist() == ["005", "006", "007", "008", "009"] * 2


def reach(folder: Path, dataset: str) -> None:
    rows = [
        {
            **{"dataset": dataset, "network": "net", "batch_size": batch, "optimizer": "", "learning_rate": 0.1},
            **{"run": 1, "target_metric": target, "target_epoch": epoch if target < 0.5 else None},
        }
        for batch, epoch in ((32, 3), (64, 4), (128, 6))
        for target in (0.2, 0.4, 0.6)
    ]
    pd.DataFrame(rows).to_csv(folder / "epochs_to_target.csv", index=False)


@pytest.mark.parametrize("name", ["", "NA"])
def test_reach_answers_every_network_whatever_its_name(tmp_path: Path, name: str) -> None:
    reach(tmp_path, name)
    found = load_kind("reach").predict(tmp_path)
    assert len(found) == 9 and (found["dataset"] == name).all()


def epochs(folder: Path, truth: object) -> Path:
    task = {"protocol": "few2", "benchmark": "NA", "train_batch_sizes": "64 128", "train_work": "5 6"}
    rows = [task | {"task_id": name, "test_batch_size": batch} for name, batch in (("001", 256), ("002", 512))]
    pd.DataFrame(rows).to_csv(folder / "rcp_tasks.csv", index=False)
    pd.DataFrame({"task_id": ["001", "002"], "truth": [truth, 9]}).to_csv(folder / "rcp_truth.csv", index=False)
    return folder


@pytest.mark.parametrize("truth", ["", 0, -1, "inf", "abc"])
def test_an_answer_that_is_none_is_left_out_of_the_score(tmp_path: Path, truth: object) -> None:
    result = run_bench("epochs", epochs(tmp_path, truth))
    assert result.predictions["task_id"].tolist() == ["001", "002"]
    covered = result.tables[1].frame.set_index("protocol")
    assert covered.loc["all", "tasks"] == 1 and not result.warning


def test_answers_that_cannot_be_matched_are_a_warning_and_the_predictions_stand(tmp_path: Path) -> None:
    epochs(tmp_path, 8)
    truth = tmp_path / "rcp_truth.csv"
    truth.write_text(truth.read_text() + "001,7\n")
    out = tmp_path / "out.csv"
    done = CliRunner().invoke(app, ["bench", "epochs", "--data", str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Warning: The answers" in done.stderr and out.read_text().splitlines()[1].startswith("001,")


def energy(cell: object, again: bool) -> pd.DataFrame:
    rows = [
        {
            **{"dataset": "", "network": "NA", "batch_size": batch, "optimizer": "sgd", "power_limit": limit},
            **{"time_per_epoch": 100 / batch + 20 / limit, "average_power": 0.8 * limit},
        }
        for batch in (8, 16, 32, 64)
        for limit in (100, 150, 200)
    ]
    frame = pd.DataFrame(rows).astype(object)
    frame.loc[1, "time_per_epoch"] = cell  # the middle limit is asked
    return pd.concat([frame, frame.iloc[[1, 4]]]) if again else frame


@pytest.mark.parametrize(("cell", "again"), [("?", False), (3.0, True)])
def test_energy_answers_that_are_none_or_stand_twice_stop_nothing(tmp_path: Path, cell: object, again: bool) -> None:
    energy(cell, again).to_csv(tmp_path / "power_gpu.csv", index=False)
    result = run_bench("energy", tmp_path)
    assert not result.warning and (result.predictions["pred_time_per_epoch"] > 0).all()
    assert (result.predictions["network"] == "NA").all() and bool(result.tables) == again


@pytest.mark.parametrize(
    ("column", "row", "cell", "match"),
    [
        ("accum_steps", 7, -1, "accum_steps must be a whole number from 0 upwards, got -1"),
        ("accum_steps", 7, "inf", "accum_steps must be"),
        ("accum_steps", 7, "", r"got nan in data row 8"),
        ("accum_steps", 1, "abc", "got 'abc' in data row 2"),
        ("nodes", 3, 0.5, r"nodes must be a whole number from 1 upwards, got 0\.5 in data row 4"),
        ("step_time_s", 3, 1e12, r"steps\.csv, rows known to p1: step_time_s must be seconds .* in data row 4"),
        ("step_time_s", 3, 1e-30, "step_time_s must be seconds from"),
    ],
)
def test_impossible_cells_are_refused_with_their_file_and_row(
    tmp_path: Path, column: str, row: int, cell: object, match: str
) -> None:
    with pytest.raises(InputError, match=match):
        predict_steps(tmp_path, changed(column, row, cell))


@pytest.mark.parametrize("sync_s", ["abc", 5.0, -1.0, ""])
def test_a_synchronisation_that_is_no_part_of_its_step_is_not_measured(tmp_path: Path, sync_s: object) -> None:
    found = predict_steps(tmp_path, changed("sync_time_s", 1, sync_s))
    without = predict_steps(tmp_path, changed("sync_time_s", 1, None))
    pd.testing.assert_frame_equal(found, without)


def test_a_pair_without_a_known_row_is_predicted_with_a_very_wide_interval(tmp_path: Path) -> None:
    other = steps(cluster="there", split_p1="test", split_p2="test_far")
    other["row_id"] = "there-" + other["row_id"].astype(str)
    found = predict_steps(tmp_path, pd.concat([steps(), other])).set_index("row_id")
    unknown = found[found.index.str.startswith("there")]
    assert len(found) == 30 and (unknown["high"] / unknown["low"] > 100).all()
    assert run_bench("step-time", tmp_path).tables


def test_a_broken_file_beside_good_ones_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "stray.csv").write_bytes(b"\xff\xfe\x00,\n1,2,3\n")
    (tmp_path / "empty.csv").write_text("")
    assert len(predict_steps(tmp_path, steps())) == 10


def test_active_checks_rows_as_step_time_does(tmp_path: Path) -> None:
    kind = load_kind("active")
    steps().drop(columns="sync_time_s").to_csv(tmp_path / "steps.csv", index=False)
    with pytest.raises(InputError, match="lacks the column sync_time_s"):
        kind.predict(tmp_path)
    frame = changed("sync_time_s", 2, "abc").assign(local_batch=8, global_batch=16)
    frame.loc[9, ["flag", "step_time_s"]] = ["input_stall", None]
    frame.to_csv(tmp_path / "steps.csv", index=False)
    assert kind.predict(tmp_path).empty


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    found = predict_steps(tmp_path, steps()).sort_values(["protocol", "row_id"], ignore_index=True)
    mixed = predict_steps(tmp_path, steps().sample(frac=1.0, random_state=3))
    pd.testing.assert_frame_equal(mixed.sort_values(["protocol", "row_id"], ignore_index=True), found, check_exact=True)
    order = ["batch_size", "power_limit"]
    forecasts = []
    for frame in (energy(2.0, False), energy(2.0, False).sample(frac=1.0, random_state=3)):
        frame.to_csv(tmp_path / "power_gpu.csv", index=False)
        forecasts.append(load_kind("energy").predict(tmp_path).sort_values(order, ignore_index=True))
    pd.testing.assert_frame_equal(*forecasts, check_exact=True)
