"""Worker entries that make several runs in one world, so that its processes start once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tula_core.engine.assemble import assemble
from tula_core.engine.batches import BatchStream, Layout
from tula_core.engine.context import WorkerContext
from tula_core.engine.loop import run_step
from tula_core.engine.noise_meter import HookedNoise, NoiseMeter
from tula_core.errors import StoppedError, TulaError
from tula_core.job import Job
from tula_core.training.worker import run_in_worker
from tula_core.workloads.load import load_workload


def runs(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Train each of ``payload["runs"]`` and return, by its name, the result, the error and what rank 0 said."""
    context.emit("ready")
    return {name: _run(context, name, asked) for name, asked in payload["runs"].items()}


def _run(context: WorkerContext, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    heard: list[dict[str, Any]] = []
    stop_at = asked.get("stop_at")

    def hear(kind: str, **data: Any) -> None:
        heard.append({"kind": kind, **data})
        # A request to stop is obeyed at the next look, which the first steps each have.
        if kind == "progress" and stop_at is not None and data["samples"] + asked["batch"] >= stop_at:
            context.stop_signal = int(signal.SIGTERM)

    os.environ["CASES_RUN"] = name
    own, context.emit = context.emit, hear  # type: ignore[method-assign]
    request = Job(
        workload=f"case_workloads:{asked['workload']}",
        recipe=asked.get("recipe", {}),
        mitigation_options=asked.get("options", {}),
        **({"mitigation": asked["mitigation"]} if asked.get("options") else {}),
    )
    loaded = load_workload(request)
    job = request.resolved(loaded.recipe, loaded.target)
    task = {
        "job": job.to_dict(),
        "local_batch": asked["local_batch"],
        "accumulation": asked.get("accumulation", 1),
        "mitigation": asked.get("mitigation", ["linear-lr", "warmup"]),
        "checkpoint": asked.get("checkpoint", str(context.folder / f"{name}.pt")),
        "resume": asked.get("resume", False),
        "train_samples": len(loaded.train_set()),  # type: ignore[arg-type]
    }
    Path(task["checkpoint"]).parent.mkdir(parents=True, exist_ok=True)
    try:
        return {"result": run_in_worker(context, task), "error": None, "events": heard}
    except StoppedError as stop:
        return {"result": None, "error": str(stop), "events": heard}
    except TulaError as error:
        return {"result": None, "error": f"{type(error).__name__}: {error}", "events": heard}
    finally:
        context.stop_signal = None
        context.emit = own  # type: ignore[method-assign]


def noise_under_overflow(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Take an epoch in half precision with three overflows; return how many updates and noise readings there were."""
    context.emit("ready")
    workload = load_workload(Job(workload="case_workloads:overflowing"))
    trainee = assemble(workload, workload.recipe, context, seed=0)
    layout = Layout(processes=context.processes, local_batch=8)
    meter = NoiseMeter(context.processes, 8)
    hooked = HookedNoise(trainee, meter)
    stream = BatchStream(workload.train_set(), samples=160, layout=layout, rank=context.rank, seed=3)
    updates, steps = 0, 0
    for step in stream.from_samples(0):
        _, updated = run_step(trainee, step, 0.01, observe=hooked.end_step)
        updates, steps = updates + updated, steps + 1
        if step.ends_epoch:
            break
    result = meter.result()
    assert result is not None
    return {"steps": steps, "updates": updates, "estimates": result.estimates, "trace": result.trace_covariance}
