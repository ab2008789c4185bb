"""Every method keeps the contract: alike when run again, exact on resume, one answer on all processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tula_core.engine.launch import WorkerTask, launch
from tula_core.mitigations import MITIGATIONS, options_of

SUPPORT = Path(__file__).parents[1] / "support"
NAMES = list(MITIGATIONS)
CLASSES = {name: {"classes": 3.0} for name, card in MITIGATIONS.items() if "classes" in card.options}
SHORT: dict[str, dict[str, float]] = {
    **CLASSES,
    "autowu": {"highest": 0.2},
    "post-local-sgd": {"period": 2},
    "ghost-batch-norm": {"group": 3},
    "schedule-free": {"rate_factor": 1.0},
    "swa": {"begins": 0.3},
    "batch-augmentation": {"copies": 3.0, "mirror": 1.0},
    "dual-batch": {"extra": 1.2, "fixed_samples": 2.0},
}
NEUTRAL: dict[str, dict[str, float]] = {
    "sam": {"rho": 0.0},
    "ghost-batch-norm": {"group": 10_000},
    "label-smoothing": {"share": 0.0, "classes": 3.0},
    "growth": {"until": 0.0},
    "rank-noise": {"small_batch": 1e9},
    "progressive-resolution": {"smallest": 1.0},
    "batch-augmentation": {"copies": 1.0, "shift": 0.0},
    "dual-batch": {"extra": 1.0},
    "post-local-sgd": {"begins": 0.99},
    "swa": {"begins": 0.99},
    "ema": {"keep": 0.0},
}


def run(folder: Path, processes: int, names: list[str], options: dict[str, Any], **payload: Any) -> dict[str, Any]:
    task = WorkerTask(
        entry="mitigation_entries:walk",
        payload={
            "names": names,
            "options": options,
            "folder": str(folder),
            "local_batch": 8,
            "accumulation": 1,
            **payload,
        },
        folder=folder,
        nodes=1,
        processes_per_node=processes,
        threads=1,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        done = launch(task, lambda event: None)
    assert done.failure is None, done.failure
    assert done.result is not None
    return dict(done.result)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """Every method on one process, with accumulation, and on three processes."""
    found = {}
    for processes, accumulation in ((1, 1), (1, 2), (3, 1)):
        folder = tmp_path_factory.mktemp(f"world-{processes}-{accumulation}")
        local = 12 // (processes * accumulation)
        found[processes, accumulation] = run(
            folder, processes, NAMES, SHORT, local_batch=local, accumulation=accumulation, again=processes == 1
        )
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", [(1, 1), (1, 2), (3, 1)])
def test_a_method_is_deterministic_resumes_exactly_and_its_processes_agree(
    walked: dict[tuple[int, int], dict[str, Any]], name: str, world: tuple[int, int]
) -> None:
    found = walked[world][name]
    assert found["samples"] == 3 * 51 and found["steps"] >= 3
    assert all(math.isfinite(weight) for weight in found["weights"])
    assert [point["samples"] for point in found["curve"]] == [51, 102, 153]
    assert found["again"] == found["digest"], "another run of the same seed differs"
    assert found["resumed"] == found["digest"], "a resumed run differs"
    assert found["agree"], "the processes hold different weights"


def test_methods_that_share_a_step_go_together(tmp_path: Path) -> None:
    """An average of the weights, asked for first, takes those that the processes have brought together."""
    together = "ema+dual-batch+batch-augmentation+progressive-resolution"
    options = {**SHORT, "progressive-resolution": {"cycles": 2.0}}
    found = run(tmp_path, 2, [together], options, local_batch=6)[together]
    assert found["samples"] == 3 * 51 and found["agree"] and found["decided"] > 0
    assert found["again"] == found["digest"] == found["resumed"]


def test_methods_with_decisions_put_them_on_record(walked: dict[tuple[int, int], dict[str, Any]]) -> None:
    for name in ("adascale", "autowu", "progressive-resolution"):
        assert walked[1, 1][name]["decided"] > 0, name


@pytest.fixture(scope="module")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("neutral")
    names = ["none", *NEUTRAL]
    return run(folder, 2, names, NEUTRAL, local_batch=4, again=False, resume=False)


@pytest.mark.parametrize("name", list(NEUTRAL))
def test_a_method_that_is_switched_off_by_its_options_is_plain_training(neutral: dict[str, Any], name: str) -> None:
    assert neutral[name]["weights"] == pytest.approx(neutral["none"]["weights"], rel=1e-4, abs=1e-6)


def test_at_the_reference_batch_rate_rules_change_nothing(tmp_path: Path) -> None:
    names = ["none", "linear-lr", "sqrt-lr", "saturating-lr", "warmup", "legw", "adascale"]
    found = run(tmp_path, 1, names, {}, local_batch=6, again=False, resume=False)
    for name in names[1:]:
        assert found[name]["weights"] == pytest.approx(found["none"]["weights"], rel=1e-5, abs=1e-7), name


def test_stages_change_the_layout_and_every_sample_is_used_once_per_epoch(tmp_path: Path) -> None:
    stages = [
        {"from_samples": 0, "local_batch": 4, "accumulation": 1},
        {"from_samples": 40, "local_batch": 8, "accumulation": 1},
        {"from_samples": 102, "local_batch": 8, "accumulation": 2},
    ]
    found = run(tmp_path, 1, ["growth"], {}, local_batch=8, accumulation=2, stages=stages)["growth"]
    # 10 steps of 4 to the 40th sample, 2 for the 11 left of the epoch; 7 for the second; 3 and a tail for the third.
    assert found["steps"] == 10 + 2 + 7 + 4
    assert [point["samples"] for point in found["curve"]] == [51, 102, 153]
    assert found["resumed"] == found["digest"]


def test_the_defaults_are_within_their_bounds() -> None:
    for name, card in MITIGATIONS.items():
        for option, value in options_of(name, {}).items():
            bounds = card.options[option]
            assert bounds.low <= value <= bounds.high and bounds.meaning, (name, option)
