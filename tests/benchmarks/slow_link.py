"""Time and accuracy of a small batch and of a mitigated large one over an emulated slow link between two machines.

``python -m tests.benchmarks.slow_link [--quick]`` joins two network namespaces by a link of 1 Gbit/s, puts one process
into each and trains Fashion-MNIST's perceptron on 20,000 images. It needs Linux, root, and ``ip`` and ``tc`` of
iproute2. The runs of both alternate within one pair of processes, so starting them is no part of the seconds;
evaluations and checkpoints are. Both processes run on this one machine: two cores at least, and quiet, are needed
for seconds that mean something, while steps and accuracy do not depend on that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.generalization_jobs import ENTRY, FULL, QUICK, Scale, job_name, sizes
from tests.benchmarks.generalization_methods import recipe_of
from tests.benchmarks.network_link import Link, missing_for_link
from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job
from tula_core.mitigations.batches.stages import Course, staged
from tula_core.records import Candidate

PROCESSES = 2
PROBE_BYTES = 25_000_000
FASTER, BELOW_POINTS = 4.0, 0.4
_JOB = "mlp-20k"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How one of the two is trained: with which methods and to which global batch."""

    name: str
    methods: tuple[str, ...]
    batch: int
    options: Mapping[str, Mapping[str, float]]


def payload_of(scale: Scale, row: Row, small: int, epochs: int, seed: int) -> dict[str, Any]:
    """Return what the worker needs for one run; both rows train at the small batch's rate."""
    bench = replace(scale.jobs[_JOB], small_batch=small, epochs=epochs)
    rate = recipe_of(bench, 1.0).model_copy(update={"learning_rate": 0.05})
    name = job_name(scale, bench, "final")
    job = Job(name=name, workload=ENTRY, recipe=rate, target="none", mitigation=list(row.methods) or "none", seed=seed)
    job = job.model_copy(update={"mitigation_options": {name: dict(values) for name, values in row.options.items()}})
    samples, _ = sizes(scale.name, bench.name, "final")
    last = Candidate(
        nodes=PROCESSES,
        processes_per_node=1,
        local_batch=row.batch // PROCESSES,
        accumulation=1,
        mitigation=row.methods,
    )
    planned = staged(last, Course(recipe=job.recipe, train_samples=samples, options=row.options))
    return {
        "row": row.name,
        "seed": seed,
        "job": job.resolved(job.recipe, None).to_dict(),
        "local_batch": planned.local_batch,
        "accumulation": planned.accumulation,
        "mitigation": list(row.methods),
        "train_samples": samples,
        "stages": [asdict(stage) for stage in planned.stages] if planned.stages else None,
    }


def walk(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Entry of the workers: measure the link, then train one run after the other."""
    context.emit("link", gbps=_link_gbps(context))
    for run in payload["runs"]:
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            result = _train(context, {**run, "checkpoint": str(Path(folder) / "checkpoint.pt")})
        context.emit("ran", row=run["row"], seed=run["seed"], **result)
    return {}


def _link_gbps(context: WorkerContext) -> float:
    """Return the speed at which each process sends during an all-reduce: with two, as much as the tensor holds."""
    import torch

    values = torch.zeros(PROBE_BYTES // 4)
    seconds = []
    for _ in range(4):
        context.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(values)
        seconds.append(time.perf_counter() - began)
    return 8 * PROBE_BYTES / statistics.median(seconds[1:]) / 1e9


def _train(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    from tula_core.training.worker import Run

    run = Run(context, payload)
    run.begin(False)
    context.barrier()
    began = time.perf_counter()
    result = run.go()
    return {
        "seconds": time.perf_counter() - began,
        "steps": result["steps"],
        "accuracy": result["curve"][-1]["metric"],
        "reductions": result["reductions"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run and print; return 0, or 2 where the machine cannot emulate a link."""
    options = _parsed(arguments)
    lacking = missing_for_link()
    if lacking is not None:
        print(f"slow_link: {lacking}", file=sys.stderr)
        return 2
    scale, seeds = (QUICK, 1) if options.quick else (FULL, options.seeds)
    large = options.large or scale.jobs[_JOB].large_batch
    rows = (
        Row(name="small", methods=(), batch=options.small, options={}),
        Row(name="auto", methods=tuple(options.mitigation), batch=large, options=_method_options(options.option)),
    )
    runs = [
        payload_of(scale, row, options.small, options.epochs, seed)
        for seed in range(seeds)
        for row in (rows if seed % 2 == 0 else rows[::-1])
    ]
    results = _results(runs, options.rate)
    for line in report(rows, results):
        print(line)
    return 0


def _results(runs: Sequence[Mapping[str, Any]], rate: str) -> list[dict[str, Any]]:
    """Train all runs over one link; its speed is printed as soon as it is known."""
    results: list[dict[str, Any]] = []

    def heard(event: Mapping[str, Any]) -> None:
        if event["kind"] == "link":
            print(f"link of {rate}: {event['gbps']:.2f} Gbit/s seen in an all-reduce of {PROBE_BYTES / 1e6:.0f} MB")
        elif event["kind"] == "ran":
            results.append(dict(event))
            print(f"{event['row']}, seed {event['seed']}: {event['seconds']:.1f} s", file=sys.stderr, flush=True)

    with Link(rate) as link, tempfile.TemporaryDirectory() as folder:
        task = WorkerTask(
            entry="tests.benchmarks.slow_link:walk",
            payload={"runs": list(runs)},
            folder=Path(folder),
            nodes=PROCESSES,
            prefixes=link.prefixes,
        )
        launch(task, heard).unwrap()
    return results


def report(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines to print: a row each, then both against the bars."""
    small, auto = ([result for result in results if result["row"] == row.name] for row in rows)
    lines = [_line(row, found) for row, found in zip(rows, (small, auto), strict=True)]
    ratio = statistics.fmean(_values(small, "seconds")) / statistics.fmean(_values(auto, "seconds"))
    lines.append(f"{ratio:.2f} times faster (bar: at least {FASTER:g}): {_verdict(ratio >= FASTER)}")
    by_seed = {result["seed"]: result["accuracy"] for result in small}
    below = [100 * (by_seed[result["seed"]] - result["accuracy"]) for result in auto]
    mean = statistics.fmean(below)
    lines.append(
        f"{mean:.2f} +- {_error(below)} points below, by seeds (bar: at most {BELOW_POINTS:g}): "
        f"{_verdict(mean <= BELOW_POINTS)}"
    )
    return lines


def _line(row: Row, results: Sequence[Mapping[str, Any]]) -> str:
    seconds, accuracies = _values(results, "seconds"), [100 * value for value in _values(results, "accuracy")]
    methods = ", ".join(row.methods) or "no method"
    return (
        f"{row.name:5} global batch {row.batch} ({methods}): {statistics.fmean(seconds):.1f} +- {_error(seconds)} s, "
        f"{statistics.fmean(_values(results, 'steps')):.0f} steps, "
        f"{statistics.fmean(accuracies):.2f} +- {_error(accuracies)} %, {len(results)} seeds"
    )


def _values(results: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(result[name]) for result in results]


def _error(values: Sequence[float]) -> str:
    """Return the standard error of the mean; unknown from one value."""
    return f"{statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else "?"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "MISSED"


def _method_options(given: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the options of ``method.name=value`` words."""
    options: dict[str, dict[str, float]] = {}
    for word in given:
        path, _, value = word.partition("=")
        method, _, name = path.partition(".")
        options.setdefault(method, {})[name] = float(value)
    return options


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--small", type=int, default=64, help="global batch, and the one that the rate belongs to")
    parser.add_argument("--large", type=int, help="global batch that the methods are to make good")
    parser.add_argument("--mitigation", nargs="*", default=["growth"], help="methods of the large batch")
    parser.add_argument("--option", nargs="*", default=[], help="of the methods, as growth.until=0.4")
    parser.add_argument("--quick", action="store_true", help="few images and one seed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
