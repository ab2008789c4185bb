"""The training loop against a bare hand-written DDP loop: same network, data, batch and processes, in one run.

``python -m tests.benchmarks.loop_overhead [--processes 2] [--batch 128]`` prints the ratio of the mean step times.
Blocks of the two alternate, so that a change of the machine's speed meets both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job


def run_in_worker(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Time alternating blocks of both loops; seconds per step by loop."""
    from tula_core.training.worker import Run

    ours = Run(context, payload)
    ours.begin(False)
    images, labels = ours.workload.train_set().get_batch(list(range(ours.samples)))
    bare = _bare_loop(ours, images, labels)
    # The last step of an epoch is left out: an evaluation follows it, which the bare loop does not have.
    steps = (step for step in ours.stream.from_samples(0) if not step.ends_epoch)
    seconds: dict[str, list[float]] = {"bare": [], "tula": []}
    for block in range(payload["blocks"] + 2):
        for name in ("bare", "tula") if block % 2 else ("tula", "bare"):
            context.barrier()
            began = time.perf_counter()
            for _ in range(payload["steps"]):
                if name == "bare":
                    next(bare)
                else:
                    ours._take(next(steps))
            context.barrier()
            if block >= 2:
                seconds[name].append((time.perf_counter() - began) / payload["steps"])
    return seconds


def _bare_loop(ours: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
    """Yield after each step of the loop a person would write."""
    torch.manual_seed(0)
    context, batch = ours.context, ours.layout.local_batch
    network: nn.Module = ours.workload.network()
    if context.processes > 1:
        network = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    while True:
        order = torch.randperm(len(images))[context.rank :: context.processes]
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            yield loss.item()


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="fashion-cnn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="global batch")
    parser.add_argument("--steps", type=int, default=80, help="per block")
    parser.add_argument("--blocks", type=int, default=10, help="of each loop")
    options = parser.parse_args(arguments)
    from tula_core.workloads.load import load_workload

    job = Job.builtin(options.job)
    workload = load_workload(job)
    with tempfile.TemporaryDirectory() as folder:
        payload = {
            "job": job.resolved(workload.recipe, None).to_dict(),
            "local_batch": options.batch // options.processes,
            "accumulation": 1,
            "mitigation": ["linear-lr", "warmup"],
            "train_samples": len(workload.train_set()),
            "checkpoint": str(Path(folder) / "checkpoint.pt"),
            "steps": options.steps,
            "blocks": options.blocks,
        }
        task = WorkerTask(
            entry="tests.benchmarks.loop_overhead:run_in_worker",
            payload=payload,
            folder=Path(folder),
            processes_per_node=options.processes,
        )
        seconds = launch(task, lambda event: None).unwrap()
    ratios = [tula / bare for tula, bare in zip(seconds["tula"], seconds["bare"], strict=True)]
    print(f"{options.job}, {options.processes} processes, global batch {options.batch}, {options.blocks} blocks each")
    for name, values in seconds.items():
        print(f"  {name:5} {1e3 * statistics.median(values):8.3f} ms a step (median of blocks)")
    print(f"  ratio {statistics.median(ratios):8.3f} (median over pairs of blocks)")


if __name__ == "__main__":
    main()
