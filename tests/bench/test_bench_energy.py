from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.energy import KIND
from tula_core.bench.energy_data import read_epochs
from tula_core.bench.energy_learn import learn_priors
from tula_core.bench.run import run_bench
from tula_core.errors import InputError
from tula_core.models.power.law import device_of, epoch_time_power, work_of
from tula_core.models.power.priors import Priors

LIMITS = (100, 150, 200, 300)
BATCHES = (8, 32, 128, 256, 1024)
WORKS = {"small-net": [7.6, 2.0, -2.0, -1.0, 0.3, -0.1, -2.0], "large-net": [8.0, 4.0, 0.5, 0.2, 0.3, 0.2, -1.0]}


def epochs(static: float, seed: int) -> pd.DataFrame:
    rng, frames = np.random.default_rng(seed), []
    for network, vector in WORKS.items():
        batch, limit = (axis.ravel().astype(float) for axis in np.meshgrid(BATCHES, LIMITS, indexing="ij"))
        work = work_of(np.tile(vector, (len(batch), 1)), batch, np.full_like(batch, 1024.0), 300.0)
        device = device_of(np.array([np.log(static), 0.4, 0.0, 1.0, 0.4]), 300.0)
        time_s, power_w = epoch_time_power(device, work, limit)
        scatter = np.exp(0.01 * rng.normal(size=(2, len(batch))))
        frames.append(
            pd.DataFrame(
                {
                    "dataset": "stripes",
                    "network": network,
                    "batch_size": batch.astype(int),
                    "optimizer": "sgd",
                    "power_limit": limit.astype(int),
                    "time_per_epoch": time_s * scatter[0],
                    "average_power": power_w * scatter[1],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, (gpu, static) in enumerate({"one": 0.15, "two": 0.3}.items()):
        epochs(static, seed).to_csv(tmp_path / f"power_{gpu}.csv", index=False)
    return tmp_path


def test_every_row_that_is_not_known_is_predicted_well(folder: Path) -> None:
    result = run_bench("energy", folder)
    assert len(result.predictions) == 2 * 2 * (len(BATCHES) * len(LIMITS) - 6)
    assert tuple(result.predictions.columns) == KIND.columns
    laws = result.tables[0].frame.set_index("law")
    assert laws.loc["Tula", "time_mape"] < 6 and laws.loc["Tula", "energy_mape"] < 8
    assert laws.loc["Tula", "time_mape"] < laws.drop("Tula").time_mape.min()
    inside = result.tables[1].frame.set_index("gpu").loc["all"]
    assert inside.time_inside > 80 and inside.power_inside > 80


def test_answers_of_asked_rows_are_neither_read_nor_needed(folder: Path) -> None:
    before = KIND.predict(folder)
    for path in folder.glob("power_*.csv"):
        frame = pd.read_csv(path)
        known = frame.batch_size.isin([8, 128, 1024]) & frame.power_limit.isin([100, 300])
        frame[["time_per_epoch", "average_power"]] = frame[["time_per_epoch", "average_power"]].where(known)
        frame.to_csv(path, index=False)
    after = KIND.predict(folder)
    pd.testing.assert_frame_equal(before, after)
    assert KIND.score(folder, after) is None
    assert KIND.leave_out(folder) == []
    assert KIND.pairs is not None and KIND.pairs(folder, after) is None


def test_the_known_rows_are_the_six_corners_and_the_lower_middle(folder: Path) -> None:
    frame = read_epochs(folder)
    known = frame[frame.known & (frame.network == "small-net") & (frame.gpu == "one")]
    assert sorted(zip(known.batch_size, known.power_limit, strict=True)) == [
        (size, limit) for size in (8, 128, 1024) for limit in (100, 300)
    ]
    for path in folder.glob("power_*.csv"):
        even = pd.read_csv(path)
        even[even.batch_size != 1024].to_csv(path, index=False)
    assert sorted(read_epochs(folder).query("known").batch_size.unique()) == [8, 32, 256]


def test_names_change_nothing(folder: Path) -> None:
    before = KIND.predict(folder)
    for path in folder.glob("power_*.csv"):
        frame = pd.read_csv(path)
        frame["network"] = frame.network.map({"small-net": "resnet50", "large-net": "ncf"})
        frame.to_csv(path.with_name(path.name.replace("power_", "power_renamed_")), index=False)
        path.unlink()
    after = KIND.predict(folder)
    assert after.pred_time_per_epoch.to_numpy() == pytest.approx(before.pred_time_per_epoch.to_numpy(), rel=1e-6)
    assert after.pred_average_power.to_numpy() == pytest.approx(before.pred_average_power.to_numpy(), rel=1e-6)


def test_left_out_tables_learn_without_what_they_predict(folder: Path) -> None:
    (table,) = KIND.leave_out(folder)
    assert table.frame.left_out.tolist() == ["gpu one", "gpu two", "network large-net", "network small-net"]
    assert (table.frame.time_mape < 15).all()


def test_what_is_learnt_is_plain_and_the_same_each_time(folder: Path) -> None:
    assert KIND.learn is not None
    one, other = KIND.learn(folder), KIND.learn(folder)
    assert one == other
    assert Priors.from_dict(one).device_mean.shape == (5,)
    single = learn_priors(read_epochs(folder).query("gpu == 'one'"))
    assert single.device_sd[0] > Priors.from_dict(one).device_sd[0] * 0.5


def test_pairs_hold_their_prediction(folder: Path) -> None:
    assert KIND.pairs is not None
    pairs = KIND.pairs(folder, KIND.predict(folder))
    assert pairs is not None and set(pairs.quantity) == {"time_per_epoch", "average_power"}
    assert ((pairs.low <= pairs.predicted) & (pairs.predicted <= pairs.high)).all()


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("average_power", "nan", "average_power must be a number above 0"),
        ("time_per_epoch", "inf", "time_per_epoch must be seconds from"),
        ("power_limit", "0", "power_limit must be a number above 0"),
        ("batch_size", "many", "'many'"),
    ],
)
def test_an_impossible_number_among_the_known_rows_is_named(folder: Path, column: str, value: str, match: str) -> None:
    path = folder / "power_one.csv"
    frame = pd.read_csv(path).astype(object)
    frame.loc[0, column] = value
    frame.to_csv(path, index=False)
    with pytest.raises(InputError, match=match):
        KIND.predict(folder)


def test_a_folder_whose_rows_are_all_known_asks_nothing(tmp_path: Path) -> None:
    epochs(0.2, 1).iloc[:1].to_csv(tmp_path / "power_lone.csv", index=False)
    assert KIND.predict(tmp_path).empty
    assert KIND.score(tmp_path, KIND.predict(tmp_path)) is None


def unknown_work() -> pd.DataFrame:
    """A work whose sizes 8, 16 and 64 stand only at the middle limit, and 32 only at the ends: no row may be known."""
    cells = [(8, 150), (16, 150), (64, 150), (32, 100), (32, 300)]
    facts = {"dataset": "dots", "network": "odd-net", "optimizer": "sgd", "time_per_epoch": 5.0, "average_power": 90.0}
    return pd.DataFrame([facts | {"batch_size": batch, "power_limit": limit} for batch, limit in cells])


def test_a_work_without_a_known_row_is_forecast_like_the_others(folder: Path) -> None:
    whole = KIND.predict(folder)
    path = folder / "power_one.csv"
    pd.concat([pd.read_csv(path), unknown_work()]).to_csv(path, index=False)
    result = run_bench("energy", folder)
    odd = result.predictions["network"] == "odd-net"
    assert (
        odd.sum() == 5
        and (result.predictions.loc[odd, ["pred_time_per_epoch", "pred_average_power"]] > 0).to_numpy().all()
    )
    others = result.predictions[~odd].reset_index(drop=True)
    pd.testing.assert_frame_equal(others, whole.reset_index(drop=True), rtol=1e-3)
    assert not result.warning


def test_an_accelerator_of_which_nothing_may_be_known_is_named(tmp_path: Path) -> None:
    unknown_work().to_csv(tmp_path / "power_one.csv", index=False)
    with pytest.raises(InputError, match="one, dots, odd-net, sgd"):
        KIND.predict(tmp_path)
