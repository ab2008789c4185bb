import json

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.laws_step_time import fit_goodput, fit_linear, goodput_step_s, linear_terms
from tula_core.bench.run import run_bench
from tula_core.bench.step_time import COLUMNS, KIND, least_relative_error, predict
from tula_core.bench.step_time_learning import widening
from tula_core.bench.step_time_tables import time_regret
from tula_core.errors import InputError
from tula_core.models.step.population import Population


def table(cluster="here", network="net", scale=1.0):
    """Measured steps of one pair: up to four nodes of up to two processes, with a little scatter."""
    generator = np.random.default_rng(len(cluster) + len(network))
    rows = []
    for nodes in (1, 2, 4):
        for processes in (1, 2):
            for batch in (8, 16, 32, 64, 128):
                sync = 0.0 if nodes * processes == 1 else scale * (0.004 * processes + 0.003 * nodes)
                time = scale * (0.02 + 3e-4 * batch) + sync
                far = nodes == 4
                rows.append(
                    {
                        "row_id": f"{cluster}-{network}-{len(rows)}",
                        "model": network,
                        "cluster": cluster,
                        "nodes": nodes,
                        "replicas": nodes * processes,
                        "max_per_node": processes,
                        "min_per_node": processes,
                        "local_batch": batch,
                        "global_batch": batch * nodes * processes,
                        "accum_steps": 0,
                        "step_time_s": time * np.exp(0.02 * generator.standard_normal()),
                        "sync_time_s": sync,
                        "flag": None,
                        "split_p1": "profile" if len(rows) % 3 == 0 else "test",
                        "split_p2": "test_far" if far else ("profile" if batch in (8, 32, 128) else "test_near"),
                    }
                )
    rows[7].update(flag="input_stall", split_p1="flagged", split_p2="flagged", step_time_s=1e3)
    return pd.DataFrame(rows)


@pytest.fixture
def folder(tmp_path):
    for cluster, network in (("here", "net"), ("here", "other"), ("there", "net")):
        table(cluster, network).to_csv(tmp_path / f"{cluster}_{network}.csv", index=False)
    pd.DataFrame({"cluster": ["here"], "mape": [1.0]}).to_csv(tmp_path / "baseline.csv", index=False)
    return tmp_path


def test_every_asked_row_is_predicted_close_and_with_an_interval(folder):
    predictions = predict(folder)
    assert tuple(predictions.columns) == COLUMNS
    rows = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*_*.csv"))])
    wanted = {(row, p) for p in ("p1", "p2") for row in rows[rows[f"split_{p}"].str.startswith("test")].row_id}
    assert set(zip(predictions.row_id, predictions.protocol, strict=True)) == wanted
    joined = predictions.merge(rows, on="row_id")
    error = (joined.pred_step_time_s / joined.step_time_s - 1).abs()
    assert error[joined.protocol == "p1"].mean() < 0.06
    assert error[joined.protocol == "p2"].mean() < 0.12
    assert ((joined.low < joined.step_time_s) & (joined.step_time_s < joined.high)).mean() > 0.8


def test_answers_and_other_pairs_change_nothing(folder):
    before = predict(folder)
    for path in folder.glob("*_*.csv"):
        rows = pd.read_csv(path)
        asked = rows.split_p1.str.startswith("test") & rows.split_p2.str.startswith("test")
        rows.loc[asked, ["step_time_s", "sync_time_s"]] = np.nan
        rows.to_csv(path, index=False)
    (folder / "there_net.csv").unlink()
    after = predict(folder)
    kept = before[~before.row_id.str.startswith("there")].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, after)
    assert KIND.score(folder, after) is None


def test_seconds_or_hours_give_the_same_forecast(tmp_path):
    found = []
    for name, scale in (("seconds", 1.0), ("other", 1000.0)):
        (tmp_path / name).mkdir()
        rows = table()
        rows[["step_time_s", "sync_time_s"]] *= scale
        rows.to_csv(tmp_path / name / "a.csv", index=False)
        found.append(predict(tmp_path / name).pred_step_time_s.to_numpy() / scale)
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_tables_stand_beside_both_laws_and_leave_out_clusters_and_networks(folder):
    result = run_bench("step-time", folder, leave_out=True)
    titles = [each.title for each in result.tables]
    assert [title for title in titles if "left out" in title][::2] == [
        "Step time by protocol, cluster left out",
        "Step time by protocol, network left out",
    ]
    summary, by_pair = result.tables[0].frame, result.tables[1].frame
    assert list(summary.protocol) == ["p1", "p2"]
    assert (summary.pairs == 3).all()
    assert np.isfinite(by_pair[["mape", "inside", "width", "adaptdl", "linear"]].to_numpy(float)).all()
    pairs = KIND.pairs(folder, result.predictions)
    assert len(pairs) == len(result.predictions)


def test_learnt_priors_survive_their_file_and_hold_no_name(folder):
    values = KIND.learn(folder)
    text = json.dumps(values)
    assert not any(name in text for name in ("here", "there", "net", "other"))
    again = Population.from_dict(json.loads(text))
    assert np.linalg.eigvalsh(again.covariance).min() > 0


def test_wrong_folders_are_refused(folder, tmp_path_factory):
    with pytest.raises(InputError, match="split_p1"):
        empty = tmp_path_factory.mktemp("none")
        pd.DataFrame({"a": [1]}).to_csv(empty / "a.csv", index=False)
        predict(empty)
    path = folder / "here_net.csv"
    rows = pd.read_csv(path)
    rows.assign(split_p2="test_far").to_csv(path, index=False)
    rows.drop(columns="sync_time_s").to_csv(path, index=False)
    with pytest.raises(InputError, match=r"here_net\.csv lacks the column sync_time_s"):
        predict(folder)
    rows.assign(step_time_s=-1.0).to_csv(path, index=False)
    with pytest.raises(
        InputError, match=r"here_net\.csv, rows known to p1: step_time_s must be seconds from 1e-09 to 1e\+09"
    ):
        predict(folder)


def test_the_goodput_model_is_recovered_from_its_own_times():
    truth = np.array([0.05, 1e-3, 0.2, 0.01, 0.04, 0.005, 2.0])
    nodes, processes, batch = (np.array(v, float) for v in zip(*[
        (n, n * g, b) for n in (1, 2, 4) for g in (1, 2, 4) for b in (16, 64, 256)
    ], strict=True))  # fmt: skip
    grad, total = goodput_step_s(truth, nodes, processes, batch)
    again = goodput_step_s(fit_goodput(nodes, processes, batch, total, grad), nodes, processes, batch)[1]
    assert np.abs(again / total - 1).mean() < 0.03


def test_the_linear_law_is_exact_on_linear_times():
    nodes, batch = np.array([1.0, 1, 1, 2, 2, 3]), np.array([8.0, 16, 64, 8, 64, 8])
    time = linear_terms(nodes, nodes, batch) @ np.array([0.1, 1e-3, 0.0, 0.0, 0.2, 0.05])
    found = linear_terms(nodes, nodes, batch) @ fit_linear(nodes, nodes, batch, time)
    assert found == pytest.approx(time)


def test_the_point_forecast_has_the_least_relative_error():
    generator = np.random.default_rng(0)
    times = np.exp(0.3 * generator.standard_normal(20_000))
    best = float(least_relative_error(np.array(0.0), np.array(0.3)))
    error = [np.abs(value / times - 1).mean() for value in (best / 1.05, best, 1.05 * best, 1.0)]
    assert min(error) == error[1]


def test_intervals_are_widened_until_nine_rows_of_ten_lie_inside():
    generator = np.random.default_rng(0)
    rows = pd.DataFrame({"row_id": range(4000), "cluster": "a", "model": "b"})
    rows["step_time_s"] = np.exp(0.2 * generator.standard_normal(4000))
    predictions = pd.DataFrame(
        {"row_id": rows.row_id, "protocol": "p1", "low": np.exp(-0.1645), "high": np.exp(0.1645)}
    )
    assert widening(predictions, rows) == pytest.approx(2.0, rel=0.05)
    assert widening(predictions.assign(low=np.exp(-1.0), high=np.exp(1.0)), rows) == 1.0


def test_regret_is_what_the_predicted_fastest_loses():
    rows = pd.DataFrame(
        {
            "nodes": [1, 1, 1, 1],
            "replicas": [1, 2, 4, 8],
            "local_batch": [64, 32, 16, 8],
            "max_per_node": [1, 2, 4, 8],
            "min_per_node": [1, 2, 4, 8],
            "global_batch": 64,
            "step_time_s": [4.0, 2.0, 1.0, 1.5],
            "pred_step_time_s": [4.0, 2.0, 1.0, 0.9],
        }
    )
    assert time_regret(rows) == pytest.approx(50.0)
    assert np.isnan(time_regret(rows.iloc[:3]))
