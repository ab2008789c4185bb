from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.reach import KIND, contested, networks_of
from tula_core.bench.reach_learn import learn, leave_out
from tula_core.bench.run import run_bench
from tula_core.errors import InputError
from tula_core.models.learning.reach import ReachPrior

LEVELS = [0.5, 0.6, 0.7, 0.8]


def rows() -> pd.DataFrame:
    found = []
    for network, (top, slope) in {"first": (0.83, 0.04), "second": (0.78, 0.03)}.items():
        for doubling, batch in enumerate((32, 64, 128, 256, 512)):
            for run in (1, 2):
                ceiling = top - slope * doubling + 0.003 * run
                for level in LEVELS:
                    epoch = np.ceil(3 / np.sqrt(ceiling - level)) if level < ceiling else np.nan
                    found.append(("data", network, batch, "sgd", "0.1", run, level, epoch))
    names = ["dataset", "network", "batch_size", "optimizer", "learning_rate", "run", "target_metric", "target_epoch"]
    return pd.DataFrame(found, columns=names)


def write(folder: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(folder / "epochs_to_target.csv", index=False, na_rep="nan")
    return folder


def test_chances_beat_the_nearest_batch_and_the_base_rate(tmp_path: Path) -> None:
    result = run_bench("reach", write(tmp_path, rows()))
    assert len(result.predictions) == 2 * 5 * len(LEVELS) and result.predictions["p"].between(0, 1).all()
    (table,) = result.tables
    total = table.frame.set_index("network").loc["all"]
    assert total["Tula"] < total["nearest batch"] < total["base rate"]


def test_a_batch_is_answered_from_the_other_batches_alone(tmp_path: Path) -> None:
    frame = rows()
    before = KIND.predict(write(tmp_path, frame))
    asked = (frame["network"] == "first") & (frame["batch_size"] == 128)
    frame.loc[asked, "target_epoch"] = 1.0
    after = KIND.predict(write(tmp_path, frame))
    same = (before["network"] == "second") | (before["batch_size"] == 128)
    pd.testing.assert_frame_equal(before[same], after[same])
    assert not before[~same].equals(after[~same])


def test_a_network_with_one_batch_size_is_answered_with_an_even_chance(tmp_path: Path) -> None:
    frame = rows()
    predictions = KIND.predict(write(tmp_path, frame[frame["batch_size"] == 32]))
    assert (predictions["p"] == 0.5).all()
    assert KIND.score(tmp_path, predictions) is None


def test_a_prior_of_reach_can_be_learnt_and_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, rows())
    prior = ReachPrior(**{name: float(str(value)) for name, value in learn(folder).items()})
    assert 0.1 < prior.slowing < 2.0
    (table,) = leave_out(folder)
    assert list(table.frame["network"]) == ["data, first", "data, second", "all"]
    assert table.frame["Tula, network left out"].between(0, 0.2).all()


def test_contested_targets_are_those_that_some_batches_reach_more_often(tmp_path: Path) -> None:
    table = contested(write(tmp_path, rows()))
    assert set(table["target_metric"]) == {0.7, 0.8}
    first = table[(table["network"] == "first") & (table["target_metric"] == 0.8)].set_index("batch_size")
    assert first.loc[32, "rate"] == 1.0 and first.loc[32, "base"] == 0.0
    assert first.loc[64, "nearest"] == 1.0


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [("batch_size", -1, "batch_size"), ("target_epoch", 0.0, "target_epoch"), ("target_metric", "x", "target_metric")],
)
def test_a_broken_row_of_runs_is_named(tmp_path: Path, column: str, value: object, named: str) -> None:
    frame = rows().astype(object)
    frame.loc[0, column] = value
    with pytest.raises(InputError, match=named):
        networks_of(write(tmp_path, frame))


def test_two_rows_for_one_target_of_a_run_are_refused(tmp_path: Path) -> None:
    frame = rows()
    with pytest.raises(InputError, match="second one in data row 2"):
        networks_of(write(tmp_path, pd.concat([frame.iloc[:1], frame])))
