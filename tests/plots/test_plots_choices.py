"""Pictures of chances and of choices: what they show, and that they are drawn for the kinds that have no quantity."""

import numpy as np
import pandas as pd
import pytest

from tula_core.bench.active import COLUMNS, stops
from tula_core.bench.run import BenchResult, draw
from tula_core.plots.data import reliability

PNG = b"\x89PNG"


def test_chances_that_are_true_lie_on_the_diagonal():
    generator = np.random.default_rng(1)
    chance, runs = generator.uniform(size=4000), np.full(4000, 3.0)
    found = reliability(chance, generator.binomial(3, chance) / 3, runs)
    assert found.share == pytest.approx(found.chance, abs=0.06)
    assert found.runs.sum() == runs.sum() and len(found.chance) == 10


def test_groups_weigh_by_runs_and_none_is_empty():
    found = reliability(np.array([0.12, 0.18, 1.0]), np.array([0.0, 1.0, 1.0]), np.array([3.0, 1.0, 2.0]))
    assert found.chance == pytest.approx([0.135, 1.0])
    assert found.share == pytest.approx([0.25, 1.0])
    assert found.runs.tolist() == [4.0, 2.0]


def curve(choice="one choice", network="made", settled_at=3):
    for count, regret in ((2, 0.2), (3, 0.02), (4, 0.01)):
        for policy in ("sweep", "worth"):
            yield (
                "here",
                network,
                choice,
                policy,
                count,
                regret,
                regret / 2,
                policy == "worth" and count >= settled_at,
            )


def test_a_policy_ends_where_it_is_settled_or_with_its_last_measurement():
    frame = pd.DataFrame([*curve(), *curve(network="other", settled_at=9)], columns=list(COLUMNS))
    found = stops(frame)
    assert found["network"].tolist() == ["made", "other"]
    assert found["measurements"].tolist() == [3, 4] and found["settled"].tolist() == [True, False]


def test_regret_is_drawn_for_every_choice(tmp_path):
    frame = pd.DataFrame([*curve(), *curve("each batch size", settled_at=9)], columns=list(COLUMNS))
    path = draw(BenchResult(kind="active", predictions=frame, tables=()), tmp_path, tmp_path / "plots")
    assert path == tmp_path / "plots" / "active.png" and path.read_bytes()[:4] == PNG
    nothing = BenchResult(kind="active", predictions=frame.iloc[:0], tables=())
    assert draw(nothing, tmp_path, tmp_path / "none") is None and not (tmp_path / "none").exists()


def reach_rows(contested):
    names = ["dataset", "network", "batch_size", "optimizer", "learning_rate", "run", "target_metric", "target_epoch"]
    reached = [(64, 3.0), (128, 4.0), (256, np.nan if contested else 5.0)]
    rows = [("d", "n", batch, "sgd", 0.1, run, 0.8, epoch) for batch, epoch in reached for run in (1, 2)]
    return pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("contested", [True, False])
def test_chances_are_drawn_where_a_target_is_contested(tmp_path, contested):
    reach_rows(contested).to_csv(tmp_path / "epochs_to_target.csv", index=False)
    asked = [("d", "n", batch, 0.8, chance) for batch, chance in ((64, 0.9), (128, 0.8), (256, 0.3))]
    predictions = pd.DataFrame(asked, columns=["dataset", "network", "batch_size", "target_metric", "p"])
    path = draw(BenchResult(kind="reach", predictions=predictions, tables=()), tmp_path, tmp_path / "plots")
    assert (path is not None) == contested
    assert path is None or path.read_bytes()[:4] == PNG
