import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from tula_core.engine.assemble import Trainee, make_optimizer
from tula_core.engine.checkpoint import load_checkpoint, save_checkpoint
from tula_core.engine.peak_memory import peak_bytes, reset_peak
from tula_core.errors import RunError
from tula_core.job import Recipe

CPU = torch.device("cpu")


def trainee(width: int) -> Trainee:
    network = nn.Linear(width, width)
    context: Any = SimpleNamespace(rank=0, processes=1, device=CPU, all_reduce_max=list)
    workload: Any = None
    recipe = Recipe()
    return Trainee(
        workload=workload,
        recipe=recipe,
        context=context,
        network=network,
        module=network,
        optimizer=make_optimizer(network, recipe),
        scaler=None,
    )


def test_a_checkpoint_needs_no_memory_of_its_own(tmp_path: Path) -> None:
    made = trainee(4000)  # 64 MB of weights
    save_checkpoint(made, tmp_path / "checkpoint.pt", {})
    reset_peak(CPU)
    before = psutil.Process().memory_info().rss
    save_checkpoint(made, tmp_path / "checkpoint.pt", {"samples": 7})
    assert peak_bytes(CPU) - before < 20e6
    assert load_checkpoint(made, tmp_path / "checkpoint.pt") == {"samples": 7}


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, path = trainee(4), tmp_path / "checkpoint.pt"
    save_checkpoint(made, path, {"samples": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        save_checkpoint(made, path, {"samples": 2})
    assert load_checkpoint(made, path) == {"samples": 1}
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".pt") or "checkpoint" in entry.name] == [
        "checkpoint.pt"
    ]
