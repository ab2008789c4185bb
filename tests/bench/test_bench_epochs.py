from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.epochs import KIND, constant_law, linear_law, nearest_law, tasks_of
from tula_core.bench.epochs_learn import learn, leave_out
from tula_core.bench.run import run_bench
from tula_core.errors import InputError
from tula_core.models.learning.work import WorkPrior

CURVES = {"a": (2000.0, 30.0), "b": (9000.0, 4.0), "c": (600.0, 1e6)}


def rows() -> list[dict[str, object]]:
    generator = np.random.default_rng(0)
    found = []
    for name, (critical, least) in CURVES.items():
        batches = [256, 512, 1024, 4096]
        work = [least * (1 + b / critical) * np.exp(0.02 * generator.standard_normal()) for b in batches]
        for protocol, known in {"few1": [0], "few2": [0, 1], "loo": [0, 1, 3]}.items():
            for asked in set(range(4)) - set(known):
                task = f"{protocol}|{name}|{asked}"
                found.append(
                    {
                        "task_id": task,
                        "protocol": protocol,
                        "benchmark": name,
                        "train_batch_sizes": " ".join(str(batches[i]) for i in known),
                        "train_work": " ".join(f"{work[i]:.6g}" for i in known),
                        "test_batch_size": batches[asked],
                        "truth": work[asked],
                    }
                )
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame = pd.DataFrame(rows())
    frame.drop(columns="truth").to_csv(tmp_path / "rcp_tasks.csv", index=False)
    frame[["task_id", "truth"]].to_csv(tmp_path / "rcp_truth.csv", index=False)
    return tmp_path


def test_each_task_is_answered_inside_its_interval_and_scored_beside_plain_laws(folder: Path) -> None:
    result = run_bench("epochs", folder)
    found = result.predictions
    assert (found["low"] < found["pred"]).all() and (found["pred"] < found["high"]).all()
    errors, covered = (table.frame for table in result.tables)
    assert list(errors["protocol"]) == ["few1", "few2", "loo"]
    assert errors["Tula"].iloc[0] < errors["linear law"].iloc[0]  # one point: the prior knows more than a constant
    assert errors["Tula"].is_monotonic_decreasing and errors["Tula"].iloc[-1] < 6.0
    assert float(covered.set_index("protocol").loc["all", "inside"]) >= 80.0


def test_a_task_is_answered_from_its_row_alone(folder: Path) -> None:
    whole = KIND.predict(folder)
    tasks = pd.read_csv(folder / "rcp_tasks.csv")
    tasks.iloc[[5]].assign(benchmark="other", protocol="other").to_csv(folder / "rcp_tasks.csv", index=False)
    pd.testing.assert_frame_equal(KIND.predict(folder), whole.iloc[[5]].reset_index(drop=True))


def test_a_folder_without_answers_is_predicted_and_not_scored(folder: Path) -> None:
    (folder / "rcp_truth.csv").unlink()
    result = run_bench("epochs", folder)
    assert len(result.predictions) == len(rows()) and result.tables == []
    assert KIND.pairs is not None and KIND.pairs(folder, result.predictions) is None
    with pytest.raises(InputError, match=r"rcp_truth\.csv"):
        learn(folder)


def test_a_prior_can_be_learnt_and_left_out(folder: Path) -> None:
    prior = WorkPrior(**{name: float(str(value)) for name, value in learn(folder).items()})
    assert 0.005 < prior.noise_sd < 0.06
    errors, covered = (table.frame for table in leave_out(folder))
    assert len(errors) == 3 and errors.iloc[:, -1].between(0, 40).all()
    assert covered["inside"].between(50, 100).all()


@pytest.mark.parametrize(
    ("column", "value"),
    [("train_work", "1 x"), ("train_work", "1"), ("train_batch_sizes", "256 -1"), ("test_batch_size", "nan")],
)
def test_a_broken_row_is_named(folder: Path, column: str, value: str) -> None:
    tasks = pd.read_csv(folder / "rcp_tasks.csv", dtype=str)
    tasks.loc[3, column] = value
    tasks.to_csv(folder / "rcp_tasks.csv", index=False)
    with pytest.raises(InputError, match="data row 4"):
        KIND.predict(folder)


def test_the_plain_laws_are_what_they_are_called() -> None:
    frame = pd.DataFrame([{"train_batch_sizes": "100 300", "train_work": "4 8", "test_batch_size": 1000}])
    (task,) = tasks_of(frame)
    assert linear_law(task) == pytest.approx(22.0)
    assert nearest_law(task) == 8.0
    assert constant_law(task) == pytest.approx(np.sqrt(32.0))
