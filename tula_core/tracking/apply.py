"""`Recorder`: apply one operation of the spool to MLflow. Applying it again changes nothing.

A job is one parent run, found by its tag before it is made; its children are the profile, the search and one training
run per attempt. Every call carries its run's id: MLflow's active run belongs to a thread and is never used. What may
differ between attempts is a param of the attempt's own run, since a param cannot be given a second value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tula_core.errors import InputError
from tula_core.records import QUANTITIES, Outcome, from_json
from tula_core.tracking import keys, store
from tula_core.tracking.artifacts import forecast_csv

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_BATCH = 900  # MLflow takes at most 1000 metrics in a call
_GHOSTS = 20
_TAG_LENGTH = 5000
_PARAM_LENGTH = 6000
_IDENTITY = {
    "job_hash": keys.JOB_HASH,
    "workload": keys.WORKLOAD,
    "hardware": keys.HARDWARE,
    "predictor": keys.PREDICTOR,
}
CHOICE = ("nodes", "processes_per_node", "local_batch", "accumulation", "global_batch", "mitigation")


class Recorder:
    """Applies operations through one client.

    Parameters
    ----------
    client
        MLflow's client for ``uri``.
    uri
        Address of the store; decides where a new experiment keeps its artifacts.
    """

    def __init__(self, client: MlflowClient, uri: str) -> None:
        self.client = client
        self.uri = uri
        self._experiments: dict[str, str] = {}

    def apply(self, operation: Mapping[str, Any]) -> None:
        """Apply one operation; raises ``KeyError`` or ``ValueError`` where it is none, MLflow's errors otherwise."""
        kinds = {"start": self._start, "progress": self._progress, "finish": self._finish}
        if operation["op"] not in kinds:
            raise ValueError(f"op: {operation['op']!r} is unknown. Known: {', '.join(kinds)}.")
        kinds[operation["op"]](operation)

    def _start(self, op: Mapping[str, Any]) -> None:
        parent, created = self._parent(op)
        parent_id, row, plan = parent.info.run_id, op["row"], _document(op["plan_json"])
        newest = int(parent.data.tags.get(keys.ATTEMPT, "0"))
        options = {f"options.{name}": value for name, value in row.get("options", {}).items()}
        choice = {name: row[name] for name in CHOICE} | options
        if created or op["attempt"] >= newest:
            self._log(parent_id, op["at_ms"], metrics=_predicted(row), tags=self._tags(op, row))
        if op["attempt"] > newest:
            self.client.update_run(parent_id, status="RUNNING")
        self._log_params(parent, {**_job_params(plan["job"]), **choice}, op["attempt"])
        probe = plan["probe"]
        told = {"probe_seconds": probe["seconds"], "probe_cost_usd": probe["cost_usd"]}
        self._finished_child({**op, "from_ms": op["at_ms"] - int(1000 * probe["seconds"])}, parent_id, "profile", told)
        counts = {
            "rows": len(plan["table"]),
            "feasible_rows": sum(bool(entry["feasible"]) for entry in plan["table"]),
            "pareto_rows": len(plan["pareto"]),
        }
        self._finished_child(op, parent_id, "search", counts)
        train = self._child(op, parent_id, "train", op["attempt"])
        self._log_params(train, {"attempt": op["attempt"], **choice}, op["attempt"])
        self.client.log_text(parent_id, op["plan_json"], keys.PLAN_FILE)
        self.client.log_text(parent_id, forecast_csv(plan["table"]), keys.FORECAST_FILE)

    def _progress(self, op: Mapping[str, Any]) -> None:
        parent, _ = self._parent(op)
        run_id = self._child(op, parent.info.run_id, "train", op["attempt"]).info.run_id
        tags: dict[str, str] = {}
        values: list[tuple[str, float, int]] = []
        for samples, named in op["points"]:
            for name, value in named.items():
                if isinstance(value, str):
                    tags.setdefault(keys.non_finite(name), f"{value} at {samples} samples")
                elif value is not None:
                    values.append((keys.clean_name(name), value, samples))
        for start in range(0, len(values), _BATCH):
            self._log_points(run_id, op["at_ms"], values[start : start + _BATCH])
        self._log(run_id, op["at_ms"], tags=tags)

    def _finish(self, op: Mapping[str, Any]) -> None:
        outcome = from_json(Outcome, json.dumps(op["outcome"]), source="spool: outcome")
        parent, created = self._parent(op)
        parent_id = parent.info.run_id
        train = self._child(op, parent_id, "train", op["attempt"])
        if op.get("only_if_running") and train.info.status != "RUNNING":
            return
        tags = _outcome_tags(outcome)
        metrics = _measured(outcome)
        newest = int(parent.data.tags.get(keys.ATTEMPT, "0"))
        latest = op["attempt"] >= newest
        if latest:
            told = _predicted_by(outcome) if created else {}
            self._log(parent_id, op["at_ms"], metrics={**told, **metrics}, tags={**tags, **self._tags(op, None)})
            if outcome.failure is None and keys.FAILURE in parent.data.tags:
                self.client.delete_tag(parent_id, keys.FAILURE)  # an earlier attempt's; it stays on that attempt
            self.client.set_terminated(parent_id, outcome.status, op["at_ms"])
        choice = {name: getattr(outcome, name) for name in CHOICE if name != "global_batch"}
        self._log_params(train, {**choice, "learning_rate": outcome.learning_rate}, op["attempt"])
        self._log(train.info.run_id, op["at_ms"], metrics=metrics, tags=tags)
        self.client.set_terminated(train.info.run_id, outcome.status, op["at_ms"])
        text = json.dumps(op["outcome"], indent=2) + "\n"
        for run_id in [parent_id, train.info.run_id] if latest else [train.info.run_id]:
            self.client.log_text(run_id, text, keys.OUTCOME_FILE)
        # Last of all: readers look for it, and must then find the rest.
        self._log(train.info.run_id, op["at_ms"], metrics={keys.RECORDED_AT: store.now_s()})

    def _tags(self, op: Mapping[str, Any], row: Mapping[str, Any] | None) -> dict[str, str]:
        tags = {tag: str(op[name]) for name, tag in _IDENTITY.items()} | {keys.ATTEMPT: str(op["attempt"])}
        if row is not None and not row["feasible"]:
            tags[keys.INFEASIBLE] = str(row["infeasible_because"])
        return tags

    def _parent(self, op: Mapping[str, Any]) -> tuple[Run, bool]:
        experiment = self._experiment(op["job_name"])
        found = self._find(experiment, {keys.JOB_ID: op["job_id"]})
        if found is not None:
            return found, False
        tags = {keys.JOB_ID: op["job_id"], keys.ROLE: "job", **self._tags(op, None)}
        tags[keys.ATTEMPT] = "0"  # so that the first operation of any attempt counts as newer
        row = op.get("row")  # absent where the first that is heard of a run is its end
        what = op["job_name"] if row is None else f"{row['nodes']}x{row['processes_per_node']} B={row['global_batch']}"
        name = f"{what} {op['job_id'][-8:]}"
        made = self._create(experiment, {keys.JOB_ID: op["job_id"]}, start_time=op["at_ms"], tags=tags, run_name=name)
        return made, True

    def _child(self, op: Mapping[str, Any], parent_id: str, role: str, attempt: int) -> Run:
        experiment = self._experiment(op["job_name"])
        tags = {keys.PARENT: parent_id, keys.ROLE: role, keys.ATTEMPT: str(attempt)}
        found = self._find(experiment, tags)
        if found is not None:
            return found
        name = f"train, attempt {attempt}" if role == "train" else role
        start_time = op.get("from_ms", op["at_ms"])
        return self._create(experiment, tags, start_time=start_time, tags=tags, run_name=name)

    def _create(self, experiment: str, identity: Mapping[str, str], **fields: Any) -> Run:
        """Make a run and return the one that counts: another machine may have made it in the same moment."""
        made = self.client.create_run(experiment, **fields)
        return self._find(experiment, identity) or made

    def _finished_child(
        self, op: Mapping[str, Any], parent_id: str, role: str, metrics: Mapping[str, float | None]
    ) -> None:
        run = self._child(op, parent_id, role, 0)  # shared by all attempts
        if run.info.status != "FINISHED":
            self._log(run.info.run_id, op["at_ms"], metrics=metrics)
            self.client.set_terminated(run.info.run_id, "FINISHED", op["at_ms"])

    def _find(self, experiment: str, tags: Mapping[str, str]) -> Run | None:
        text = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        found = sorted(
            self.client.search_runs([experiment], text, max_results=_GHOSTS, order_by=["attributes.start_time ASC"]),
            key=lambda run: (run.info.start_time, run.info.run_id),
        )
        for ghost in found[1:]:
            # A server that was thought dead carried out the first call after all; nothing was ever written to this one.
            if not ghost.data.metrics and not ghost.data.params:
                self.client.delete_run(ghost.info.run_id)
        return found[0] if found else None

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = experiment_id(self.client, self.uri, name)
        return self._experiments[name]

    def _log(
        self,
        run_id: str,
        at_ms: int,
        *,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, RunTag

        numbers = {name: value for name, value in (metrics or {}).items() if value is not None}
        sent = [Metric(name, float(value), at_ms, 0) for name, value in numbers.items() if math.isfinite(value)]
        odd = {keys.non_finite(name): str(value) for name, value in numbers.items() if not math.isfinite(value)}
        marks = [RunTag(name, value[:_TAG_LENGTH]) for name, value in {**(tags or {}), **odd}.items()]
        if sent or marks:
            self.client.log_batch(run_id, metrics=sent, tags=marks)

    def _log_points(self, run_id: str, at_ms: int, values: Iterable[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        points = [Metric(name, float(value), at_ms, samples) for name, value, samples in values]
        if points:
            self.client.log_batch(run_id, metrics=points)

    def _log_params(self, run: Run, params: Mapping[str, Any], attempt: int) -> None:
        """Log the params a run does not hold yet; one that differs becomes a tag, since MLflow refuses the change."""
        from mlflow.entities import Param

        run_id, held = run.info.run_id, run.data.params
        told = {name: _text(value)[:_PARAM_LENGTH] for name, value in params.items()}
        fresh = [Param(name, value) for name, value in told.items() if name not in held]
        changed = [f"{name} {held[name]} -> {value}" for name, value in told.items() if held.get(name, value) != value]
        if fresh:
            self.client.log_batch(run_id, params=fresh)
        if changed:
            self.client.set_tag(run_id, keys.CHANGED, f"attempt {attempt}: {', '.join(changed)}"[:_TAG_LENGTH])


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Return the experiment of that name, made if absent and restored if somebody deleted it."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=store.artifact_location(uri, name)))
        except MlflowException as error:
            found = client.get_experiment_by_name(name)  # another machine may have made it in between
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _document(text: str) -> Any:
    """Return parsed JSON; the error differs from the one that a server's garbled answer gives."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"spool: plan_json is not JSON ({error}).") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _predicted(row: Mapping[str, Any]) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    for name in QUANTITIES:
        key = keys.predicted(name)
        metrics |= {key: row[name], f"{key}.low": row[f"{name}_low"], f"{key}.high": row[f"{name}_high"]}
    return metrics


def _predicted_by(outcome: Outcome) -> dict[str, float | None]:
    row: dict[str, Any] = {}
    for name in QUANTITIES:
        row[name] = outcome.predicted.get(name)
        row[f"{name}_low"], row[f"{name}_high"] = outcome.predicted_low.get(name), outcome.predicted_high.get(name)
    return _predicted(row)


def _measured(outcome: Outcome) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {keys.actual(name): outcome.actual.get(name) for name in QUANTITIES}
    return metrics | {keys.error_pct(name): outcome.error_pct(name) for name in QUANTITIES}


def _outcome_tags(outcome: Outcome) -> dict[str, str]:
    tags = {"tula.learning_rate_reductions": str(outcome.learning_rate_reductions)}
    if outcome.failure is not None:
        tags[keys.FAILURE] = outcome.failure
    if outcome.method_changes:
        tags[keys.METHOD_CHANGES] = "; ".join(change.words() for change in outcome.method_changes)
    if outcome.planned_hardware is not None:
        tags[keys.PLANNED_HARDWARE] = outcome.planned_hardware
    if outcome.target_reached is not None:
        tags[keys.TARGET_REACHED] = str(outcome.target_reached).lower()
    return tags


def _job_params(job: Mapping[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in job.items():
        if isinstance(value, Mapping):
            params |= {f"{name}.{part}": item for part, item in value.items()}
        elif value is not None:
            params[f"job.{name}"] = value
    return {name: value for name, value in params.items() if value is not None}
