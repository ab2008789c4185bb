"""Making the runs: one worker process walks through them all, one thread, no launch for each."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.generalization_jobs import TUNE
from tests.benchmarks.generalization_store import Request, Store
from tula_core.engine.context import WorkerContext
from tula_core.engine.launch import WorkerTask, launch

_ENTRY = "tests.benchmarks.generalization_runs:walk"


def make_runs(requests: Sequence[Request], store: Store) -> None:
    """Train all that is asked for; each result is kept as soon as it is there."""
    by_digest = {request.digest: request for request in requests}
    done = 0

    def heard(event: Mapping[str, Any]) -> None:
        nonlocal done
        if event["kind"] != "ran":
            return
        done += 1
        request = by_digest[event["digest"]]
        result = store.add(request, event["result"])
        judged = "diverged" if result.accuracy is None else f"{100 * result.accuracy:.2f} %"
        print(
            f"{done}/{len(requests)} {request.bench.name} {request.split} {request.row.name}: batch {request.batch}, "
            f"rate {request.rate:g}, seed {request.seed}: {judged}",
            file=sys.stderr,
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        payload = {"requests": [request.payload() for request in requests]}
        launch(WorkerTask(entry=_ENTRY, payload=payload, folder=Path(folder)), heard).unwrap()


def walk(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Entry of the worker: train one request after the other and tell of each."""
    for request in payload["requests"]:
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            result = train(context, {**request, "checkpoint": str(Path(folder) / "checkpoint.pt")})
        context.emit("ran", digest=request["digest"], result=result)
    return {"runs": len(payload["requests"])}


def train(context: WorkerContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Result` of one run."""
    from tula_core.errors import DivergedError
    from tula_core.training.worker import Run

    run = Run(context, payload)
    run.begin(False)
    try:
        result = run.go()
    except DivergedError:
        progress = run.progress
        return {
            "accuracy": None,
            "train_accuracy": None,
            "steps": progress.steps,
            "samples": progress.samples,
            "seconds": None,
            "reductions": progress.reductions,
        }
    return {
        "accuracy": result["curve"][-1]["metric"],
        "train_accuracy": None if payload["split"] == TUNE else _train_accuracy(run),
        "steps": result["steps"],
        "samples": result["samples"],
        "seconds": result["step_time_s"] * result["steps"],
        "reductions": result["reductions"],
    }


def _train_accuracy(run: Any) -> float:
    from tula_core.engine.evaluate import evaluate

    judged = replace(run.trainee, workload=replace(run.workload, eval_data=run.workload.train_set()))
    with run.methods.evaluating(run.trainee.network, run._statistics_batches):
        return evaluate(judged, run.eval_batch).metric
