"""A tiny image workload with batch norm, and a worker that takes every method through the contract."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from tiny_workloads import ACCURACY
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tula_core.engine.context import WorkerContext
from tula_core.job import Job, Recipe
from tula_core.training.worker import Run
from tula_core.workloads import Workload

SAMPLES = 51  # leaves an odd tail at every batch that is tried
STOP_AFTER = 3  # steps, before the run is taken up again


def pictures(samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    return TensorDataset(torch.randn(samples, 1, 8, 8, generator=generator) + labels[:, None, None, None], labels)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layers(inputs).flatten(1))


def images() -> Workload:
    return Workload(
        name="tiny-images",
        network=Net,
        train_data=pictures(SAMPLES, 1),
        eval_data=pictures(30, 2),
        loss=nn.functional.cross_entropy,
        metric=ACCURACY,
        recipe=Recipe(learning_rate=0.05, batch_size=6, epochs=3, weight_decay=1e-4, schedule="cosine"),
    )


def fingerprint(run: Run) -> str:
    """Return a digest of weights and averages as they would be kept."""
    digest = hashlib.sha256()
    for value in run.trainee.network.state_dict().values():
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def weights(run: Run) -> list[float]:
    return [float(value) for parameter in run.trainee.network.parameters() for value in parameter.detach().flatten()]


def make_run(context: WorkerContext, payload: dict[str, Any], name: str, part: str) -> Run:
    """Return a run with the method of a name, or with several whose names are joined by a plus."""
    folder = Path(payload["folder"]) / f"{name}-{part}"
    if context.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    context.barrier()
    names = name.split("+") if name != "none" else []
    request = Job(
        workload="mitigation_entries:images",
        recipe=payload.get("recipe", {}),
        mitigation=names or "none",
        mitigation_options={each: payload["options"][each] for each in names if payload["options"].get(each)},
        seed=3,
    )
    job = request.resolved(images().recipe, None)
    return Run(
        context,
        {
            "job": job.to_dict(),
            "local_batch": payload["local_batch"],
            "accumulation": payload["accumulation"],
            "mitigation": names,
            "checkpoint": str(folder / "checkpoint.pt"),
            "train_samples": SAMPLES,
            "stages": payload.get("stages"),
        },
    )


def whole(context: WorkerContext, payload: dict[str, Any], name: str, part: str) -> dict[str, Any]:
    """Train to the end; return digest, weights, whether all processes agree, and what was decided."""
    run = make_run(context, payload, name, part)
    run.begin(False)
    result = run.go()
    return _summary(context, run, result)


def resumed(context: WorkerContext, payload: dict[str, Any], name: str) -> str:
    """Stop after some steps, leave everything, take the run up anew and end it; return the digest."""
    first = make_run(context, payload, name, "resumed")
    first.begin(False)
    first._enter_stage()
    for taken, step in enumerate(first.stream.from_samples(0), start=1):
        first._take(step)
        if (taken >= STOP_AFTER and first.methods.at_rest) or step.ends_epoch:
            break
    first._save()
    second = make_run(context, payload, name, "resumed")
    second.begin(True)
    second.go()
    return fingerprint(second)


def _summary(context: WorkerContext, run: Run, result: dict[str, Any]) -> dict[str, Any]:
    mine = int(fingerprint(run)[:12], 16)
    agree = context.all_reduce_max([float(mine)])[0] == -context.all_reduce_max([-float(mine)])[0]
    decisions = run.checkpoint.with_name("decisions.jsonl")
    return {
        "digest": fingerprint(run),
        "weights": weights(run),
        "agree": agree,
        "steps": result["steps"],
        "samples": result["samples"],
        "curve": result["curve"],
        "decided": len(decisions.read_text().splitlines()) if decisions.exists() else 0,
    }


def walk(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Take each method through a whole run twice and a resumed one."""
    found = {}
    for name in payload["names"]:
        first = whole(context, payload, name, "first")
        again = whole(context, payload, name, "again") if payload.get("again", True) else first
        found[name] = {
            **first,
            "again": again["digest"],
            "resumed": resumed(context, payload, name) if payload.get("resume", True) else None,
        }
    return found
