"""The training loop against a bare hand-written DDP loop: same network, data, batch and processes, in one run.

``python -m tests.benchmarks.loop_overhead [--processes 2] [--batch 128]`` prints what a step takes in a bare loop, in
Tula's without methods, with the noise meter at its default rate (as AdaScale asks for it) and with a growing batch
held at one size, and the ratios to the bare one. Blocks of all loops alternate, so that a change of the machine's
speed meets them alike; a ratio is the median over rounds of blocks. CPU time, of all processes together, is what
counts where others use the machine too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job

METHODS: Mapping[str, list[str]] = {"no mitigation": [], "noise meter": ["adascale"], "growth": ["growth"]}
BARS: Mapping[str, float] = {"no mitigation": 1.03, "noise meter": 1.05}
WARM_UP_BLOCKS = 2


def run_in_worker(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Time alternating blocks of all loops; wall and CPU seconds per step by loop."""
    loops: dict[str, Callable[[], None]] = {}
    for name, methods in METHODS.items():
        checkpoint = str(Path(payload["checkpoint"]).with_name(name) / "checkpoint.pt")
        loops[name] = _our_loop(context, {**payload, "mitigation": methods, "checkpoint": checkpoint})
    loops = {"bare": _bare_loop(context, payload), **loops}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for block in range(payload["blocks"] + WARM_UP_BLOCKS):
        for name in list(loops) if block % 2 else list(loops)[::-1]:
            found = _time_block(context, loops[name], payload["steps"])
            if block >= WARM_UP_BLOCKS:
                seconds[name].append(found)
    return seconds


def _time_block(context: WorkerContext, step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Return the wall seconds of a step and its CPU seconds, those of all processes added."""
    context.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    cpu_s = time.process_time() - began_cpu
    context.barrier()
    wall_s = time.perf_counter() - began
    return wall_s / steps, context.all_reduce_sum([cpu_s])[0] / steps


def _our_loop(context: WorkerContext, payload: dict[str, Any]) -> Callable[[], None]:
    """Return what takes one of Tula's steps; pauses in which other loops run do not count for its guard."""
    from tula_core.training.worker import Run

    run = Run(context, payload)
    run.checkpoint.parent.mkdir(exist_ok=True)
    run.begin(False)
    steps = run.stream.from_samples(0)
    left_at = time.perf_counter()

    def take() -> None:
        nonlocal left_at
        pause_s = time.perf_counter() - left_at
        run.guard._checked_at += pause_s
        run.guard._saved_at += pause_s
        step = next(steps)
        if step.ends_epoch:  # left out: an evaluation follows it, which the bare loop does not have
            step = next(steps)
        run._take(step)
        left_at = time.perf_counter()

    return take


def _bare_loop(context: WorkerContext, payload: dict[str, Any]) -> Callable[[], None]:
    """Return what takes one step of the loop a person would write."""
    from tula_core.workloads.load import load_workload

    workload = load_workload(Job.from_mapping(payload["job"]))
    data: Any = workload.train_set()
    images, labels = data.get_batch(list(range(len(data))))
    torch.manual_seed(0)
    network: nn.Module = workload.network()
    if context.processes > 1:
        network = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def batches() -> Iterator[torch.Tensor]:
        size = payload["local_batch"]
        while True:
            order = torch.randperm(len(images))[context.rank :: context.processes]
            yield from order[: len(order) // size * size].split(size)

    steps = batches()

    def take() -> None:
        chosen = next(steps)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        loss.item()

    return take


def ratio(values: Sequence[float], bare: Sequence[float]) -> tuple[float, float]:
    """Return the median of the ratios of blocks, and its standard error.

    The error is that of a median of normal values, sqrt(pi/2) of the mean's, with the spread from the median absolute
    deviation: a few blocks in which the machine did something else do not count.

    >>> ratio([1.0, 2.2, 3.0], [1.0, 2.0, 3.0])[0]
    1.0
    """
    ratios = [value / other for value, other in zip(values, bare, strict=True)]
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(found - middle) for found in ratios)
    return middle, 1.2533 * spread / len(ratios) ** 0.5


def report(seconds: Mapping[str, Sequence[Sequence[float]]]) -> list[str]:
    """Return a line for each loop: milliseconds of a step, and the ratios to the bare loop."""
    lines = [f"  {'loop':14} {'wall':>8} {'CPU':>8}  ms a step, medians of blocks; ratios to the bare loop"]
    bare = [list(column) for column in zip(*seconds["bare"], strict=True)]
    for name, blocks in seconds.items():
        columns = [list(column) for column in zip(*blocks, strict=True)]
        wall, cpu = (1e3 * statistics.median(column) for column in columns)
        line = f"  {name:14} {wall:8.3f} {cpu:8.3f}"
        if name != "bare":
            found = [ratio(column, other) for column, other in zip(columns, bare, strict=True)]
            line += "".join(
                f"  {kind} {middle:.3f} +- {error:.3f}"
                for kind, (middle, error) in zip(("wall", "CPU"), found, strict=True)
            )
        lines.append(line + (f"  (bar {BARS[name]:g})" if name in BARS else ""))
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", default="fashion-cnn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="global batch")
    parser.add_argument("--steps", type=int, default=40, help="per block")
    parser.add_argument("--blocks", type=int, default=16, help="of each loop")
    options = parser.parse_args(arguments)
    from tula_core.workloads.load import load_workload

    job = Job.builtin(options.job)
    workload = load_workload(job)
    with tempfile.TemporaryDirectory() as folder:
        payload = {
            "job": job.resolved(workload.recipe, None).to_dict(),
            "local_batch": options.batch // options.processes,
            "accumulation": 1,
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
    print(
        f"{options.job}, {options.processes} processes, global batch {options.batch}, "
        f"{options.blocks} blocks of {options.steps} steps each"
    )
    print("\n".join(report(seconds)))


if __name__ == "__main__":
    main()
