from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from tula_core.bench import active_pairs, load_kind
from tula_core.bench.active import COLUMNS, COUNTS
from tula_core.bench.active_pairs import read_pairs
from tula_core.bench.active_policies import MOST, at_random, by_worth, cheap, follow, screen, sweep
from tula_core.bench.run import run_bench
from tula_core.errors import InputError


def true_step_s(nodes, per_node, local):
    """A floor, a slope, and an all-reduce that is dear between nodes."""
    gpus = nodes * per_node
    return 0.02 + 0.001 * local + 0.01 * (gpus - 1) / gpus + (0.03 * nodes if nodes > 1 else 0.0)


def recorded(noise=0.02, seed=0):
    """One cluster with up to 4 nodes of 4 accelerators."""
    generator = np.random.default_rng(seed)
    rows = []
    layouts = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (4, 4)]
    for (nodes, per_node), batch in itertools.product(layouts, (64, 128, 256, 512)):
        gpus = nodes * per_node
        if batch // gpus < 4:
            continue
        step = true_step_s(nodes, per_node, batch // gpus) * float(np.exp(noise * generator.standard_normal()))
        rows.append(
            {
                "row_id": f"made-{len(rows)}",
                "model": "made",
                "cluster": "made",
                "nodes": nodes,
                "replicas": gpus,
                "max_per_node": per_node,
                "min_per_node": per_node,
                "local_batch": batch // gpus,
                "global_batch": batch,
                "accum_steps": 0,
                "step_time_s": step,
                "sync_time_s": 0.3 * step if gpus > 1 else 0.0,
                "flag": None,
                "split_p1": "test",
                "split_p2": "profile" if nodes == 1 and gpus <= 2 else "test_far",
            }
        )
    return pd.DataFrame(rows)


@pytest.fixture
def folder(tmp_path):
    recorded().to_csv(tmp_path / "made.csv", index=False)
    pd.DataFrame({"cluster": ["made"], "mape": [3.0]}).to_csv(tmp_path / "baseline.csv", index=False)
    return tmp_path


@pytest.fixture
def pair(folder):
    [pair] = read_pairs(folder)
    return pair


def test_a_pair_holds_each_configuration_once_with_what_was_recorded(pair):
    shapes = zip(pair.shapes.nodes, pair.shapes.processes, pair.shapes.local_batch, strict=True)
    assert len(set(shapes)) == len(pair.timings) == len(recorded())
    for timing in pair.timings:
        assert timing.compute_s + timing.communication_s == pytest.approx(timing.step_time_s)
    for choice in pair.choices:
        truth = np.log([timing.step_time_s for timing in pair.timings])
        assert pair.regret(choice, truth) == 0.0
        assert pair.regret(choice, -truth) > 0.1


def test_every_order_begins_alike_and_names_each_configuration_at_most_once(pair):
    everything = set(range(len(pair.timings)))
    for order in (sweep(pair), cheap(pair), at_random(pair, 0)):
        assert len(order) == len(set(order)) and set(order) <= everything
    first = [pair.timings[i] for i in screen(pair)]
    assert {timing.nodes * timing.processes_per_node for timing in first} == {1}
    assert [timing.local_batch for timing in first] == [64, 512]
    known = cheap(pair)[: int(pair.known_first.sum())]
    assert all(pair.timings[i].nodes == 1 for i in known)


def test_measuring_by_worth_settles_on_the_best_after_a_few_measurements_each_time_the_same(pair):
    choice = pair.choices[1]
    points = list(by_worth(pair, choice))
    assert [point.measurements for point in points] == list(range(2, 2 + len(points)))
    assert points[-1].measurements <= MOST
    settled = next(point for point in points if point.settled)
    assert settled.unsettled < 0.01 and settled.regret < 0.15
    assert settled.measurements <= len(pair.timings) / 3
    assert [point.regret for point in by_worth(pair, choice)] == [point.regret for point in points]


def test_a_fixed_order_is_followed_as_far_as_it_goes(pair):
    found = follow(pair, [0, 1, 2], [2, 4, 500])
    assert set(found) == {choice.name for choice in pair.choices}
    assert all([point.measurements for point in points] == [2, 4] for points in found.values())


def test_the_kind_reports_every_policy_of_every_pair(folder):
    kind = load_kind("active")
    result = run_bench("active", folder)
    found = result.predictions
    assert tuple(found.columns) == kind.columns == COLUMNS
    assert set(found["policy"]) == {"worth", "sweep", "cheap", "random"} and set(found["measurements"]) == set(COUNTS)
    assert (found["regret"] >= 0).all() and np.isfinite(found["regret"]).all()
    titles = [table.title for table in result.tables]
    assert len(titles) == 4 and all("egret" in title for title in titles)
    assert kind.leave_out(folder) == []


def test_a_folder_without_step_times_or_with_impossible_ones_is_refused(tmp_path):
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(InputError, match="split_p1"):
        run_bench("active", tmp_path)
    recorded().assign(step_time_s=-1.0).to_csv(tmp_path / "wrong.csv", index=False)
    with pytest.raises(InputError, match="step_time_s"):
        run_bench("active", tmp_path)


def test_a_pair_that_leaves_nothing_to_choose_is_left_out(tmp_path):
    recorded().head(3).to_csv(tmp_path / "small.csv", index=False)
    assert read_pairs(tmp_path) == []


def test_a_pair_with_very_many_configurations_keeps_some_of_each_batch_size(tmp_path, monkeypatch):
    recorded().to_csv(tmp_path / "many.csv", index=False)
    whole = read_pairs(tmp_path)[0]
    monkeypatch.setattr(active_pairs, "MOST_CANDIDATES", 10)
    fewer = read_pairs(tmp_path)[0]
    assert len(fewer.timings) < len(whole.timings)
    groups = [[choice.groups for choice in pair.choices if len(choice.groups) > 1][0] for pair in (whole, fewer)]
    assert len(groups[0]) == len(groups[1]) and all(len(group) >= 4 for group in groups[1])
