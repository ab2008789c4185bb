"""Measurements that contradict each other, or say next to nothing, must not give a confident number."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tula_core.bench import load_kind


def epochs(folder: Path, batches: str, work: str, asked: float) -> pd.Series:
    row = {"task_id": "001", "train_batch_sizes": batches, "train_work": work, "test_batch_size": asked}
    pd.DataFrame([row]).to_csv(folder / "rcp_tasks.csv", index=False)
    return load_kind("epochs").predict(folder).iloc[0]


@pytest.mark.parametrize(
    ("batches", "work", "asked"),
    [("256 256", "10 1000", 512), ("64 128", "100 1", 256), ("64 128 256", "1 1000 1", 512)],
)
def test_work_that_no_law_fits_is_predicted_inside_its_interval(
    tmp_path: Path, batches: str, work: str, asked: float
) -> None:
    found = epochs(tmp_path, batches, work, asked)
    assert found["low"] <= found["pred"] <= found["high"]
    assert found["pred"] > 0.1 and found["high"] / found["low"] > 100


def test_work_a_million_times_beyond_the_known_batches_is_not_certain(tmp_path: Path) -> None:
    found = epochs(tmp_path, "1 1000000", "5 5", 1e12)
    assert found["high"] / found["low"] > 20


@pytest.mark.parametrize("exponent", [-0.1, -0.6])
def test_work_that_falls_with_the_batch_is_followed(tmp_path: Path, exponent: float) -> None:
    batches = [64, 128, 256, 512, 1024]
    work = " ".join(str(100 * (batch / 64) ** exponent) for batch in batches)
    found = epochs(tmp_path, " ".join(map(str, batches)), work, 4096)
    truth = 100 * 64**exponent
    assert found["low"] <= truth <= found["high"] and 0.6 * truth < found["pred"] < 1.6 * truth


def step_rows(times_s: list[float]) -> pd.DataFrame:
    base = {
        **{"model": "net", "cluster": "here", "nodes": 1, "replicas": 1, "max_per_node": 1, "min_per_node": 1},
        **{"local_batch": 64, "global_batch": 64, "accum_steps": 0, "sync_time_s": 0.0, "flag": None},
    }
    known = [
        base | {"row_id": f"known-{i}", "step_time_s": time_s, "split_p1": "profile", "split_p2": "profile"}
        for i, time_s in enumerate(times_s)
    ]
    return pd.DataFrame([*known, base | {"row_id": "asked", "split_p1": "test", "split_p2": "test_near"}])


@pytest.mark.parametrize("times_s", [[0.1, 100.0], [0.1] * 10 + [10.0] * 10])
def test_contradicting_steps_widen_the_interval_at_their_configuration(tmp_path: Path, times_s: list[float]) -> None:
    step_rows(times_s).to_csv(tmp_path / "steps.csv", index=False)
    found = load_kind("step-time").predict(tmp_path).iloc[0]
    assert found["low"] < min(times_s) and found["high"] > max(times_s)


def test_steps_that_agree_stay_certain(tmp_path: Path) -> None:
    step_rows([0.1, 0.102, 0.101]).to_csv(tmp_path / "steps.csv", index=False)
    found = load_kind("step-time").predict(tmp_path).iloc[0]
    assert found["high"] / found["low"] < 1.3


def test_contradicting_runs_widen_the_interval_on_more_accelerators(tmp_path: Path) -> None:
    shape = {"nodes": 1, "n_accel": 8, "local_batch": 64}
    known = [shape | {"time_per_step_s": time_s} for time_s in (0.1, 100.0)]
    task = {"submission_id": "001", "family": "f", "known": json.dumps(known), "bench": "b", "accel": "a"}
    task |= {"nodes": 2, "n_accel": 16, "local_batch": 64}
    pd.DataFrame([task]).to_csv(tmp_path / "scaling_tasks.csv", index=False)
    run = {"round": 1, "submitter": "s", "accel": "a", "accelerators_per_node": 8, "status": "success", "bench": "c"}
    run |= {"time_per_step_s": 0.1, "time_method": "wall"} | shape
    pd.DataFrame([run]).to_csv(tmp_path / "results_c.csv", index=False)
    found = load_kind("scaling").predict(tmp_path).iloc[0]
    assert found["low"] < 0.1 and found["high"] > 100.0
