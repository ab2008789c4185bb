from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.device_facts import DEVICES
from tula_core.bench.scaling_transfer import START, device_pairs, learn_transfer, transfer_tables
from tula_core.models.hardware.transfer import log_time_ratio

SHARE = 0.7


def runs(seed: int = 0) -> pd.DataFrame:
    """Seconds of a step that follow data sheets with a memory share of 0.7, and runs that may not count."""
    rng = np.random.default_rng(seed)
    rows = []
    for bench in ("one", "two"):
        for name, device in DEVICES.items():
            rate = device.flops_per_s ** (1 - SHARE) * device.memory_bytes_per_s**SHARE
            time_s = 1e12 / rate * float(np.exp(0.1 * rng.standard_normal()))
            row = {"bench": bench, "family": f"{bench}|1.0|team|{name}|x8", "accel": name, "nodes": 1, "n_accel": 8}
            rows.append({**row, "local_batch": 64, "time_per_step_s": 64 * time_s})
            rows.append({**row, "local_batch": 8, "time_per_step_s": 64 * time_s})
            rows.append({**row, "nodes": 8, "n_accel": 64, "local_batch": 128, "time_per_step_s": time_s})
        rows.append({**rows[-1], "accel": "unheard-of", "family": f"{bench}|1.0|team|unheard-of|x8", "nodes": 1})
    return pd.DataFrame(rows)


def test_pairs_are_of_known_devices_on_one_node_at_the_largest_batch() -> None:
    found = device_pairs(runs())
    assert len(found) == 2 * len(DEVICES) * (len(DEVICES) - 1)
    assert {pair.first for pair in found} == set(DEVICES)
    there = {(pair.bench, pair.first, pair.second): pair.log_ratio for pair in found}
    assert all(ratio == pytest.approx(-there[b, second, first]) for (b, first, second), ratio in there.items())
    assert all(abs(ratio) < math.log(30) for ratio in there.values())


def test_the_memory_share_is_recovered_and_wide_figures_stay() -> None:
    learnt = learn_transfer(device_pairs(runs()))
    assert learnt.memory_share == pytest.approx(SHARE, abs=0.1)
    assert learnt.fact_sd < 1.2 * START.fact_sd
    assert (learnt.floor_sd, learnt.memory_share_sd) == (START.floor_sd, START.memory_share_sd)


def test_the_table_holds_each_device_and_covers_what_it_should() -> None:
    table = transfer_tables(device_pairs(runs())).set_index("to")
    assert set(table.index) == {*DEVICES, "all"}
    assert table.loc["all", "inside 90 % interval"] > 85
    assert table.loc["all", "mean error %"] < 20


def test_every_data_sheet_figure_is_in_the_unit_that_the_table_says() -> None:
    for device in DEVICES.values():
        assert 1e13 < device.flops_per_s < 5e15
        assert 1e11 < device.memory_bytes_per_s < 2e13
        assert log_time_ratio(device, device, START)[0] == 0.0
