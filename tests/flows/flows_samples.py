"""A small plan, profile and outcome for the tests of what is printed and passed along."""

from tula_core.job import Job
from tula_core.records import (
    Candidate,
    Hardware,
    Interval,
    Outcome,
    Plan,
    PlanProbe,
    ProbeUse,
    Profile,
    Row,
    StepTiming,
    WorkloadFacts,
)

HARDWARE = {
    "fingerprint": "0123456789abcdef",
    "device": "cpu",
    "device_name": "x86_64",
    "devices": 2,
    "cores": 2,
    "memory_bytes": 8 * 2**30,
    "device_memory_bytes": None,
    "threads_per_process": 1,
    "versions": {"torch": "2.14.1"},
}


def spread(value: float, share: float = 0.2) -> Interval:
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def row(
    processes: int, local_batch: int, *, seconds: float, because: str | None = None, price: float | None = None
) -> Row:
    forecast = {
        "step_time_s": spread(0.0123),
        "time_to_train_s": spread(seconds),
        "node_hours": spread(seconds / 3600),
        "memory_bytes": spread(512 * 2.0**20),
        "epochs": spread(12.0),
        "steps": spread(1234.0),
        "accuracy": spread(0.9712, 0.01),
    }
    if price is not None:
        forecast["cost_usd"] = spread(price * seconds / 3600)
    return Row(
        candidate=Candidate(nodes=1, processes_per_node=processes, local_batch=local_batch, mitigation=("linear-lr",)),
        feasible=because is None,
        infeasible_because=because,
        measured=local_batch < 256,
        forecast=forecast,
    )


def plan(*, feasible: bool = True, price: float | None = None, cached: bool = False) -> Plan:
    because = None if feasible else "time_to_train 6.4 min is over the deadline of 1 s"
    rows = (
        row(1, 32, seconds=61.7, because=because, price=price),
        row(1, 128, seconds=42.0, because=because, price=price),
        row(2, 64, seconds=38.4, because=because, price=price),
        row(2, 4096, seconds=387.0, because="memory 20.1 GiB is over the limit of 8 GiB", price=price),
    )
    return Plan(
        job=Job(workload="digits-cnn", name="digits-cnn"),
        hardware=HARDWARE,
        predictor="tula-predictor v1 (built-in)",
        probe=PlanProbe(seconds=19.6, cost_usd=None, cached=cached),
        table=rows,
        pareto=(1, 2) if feasible else (),
        knee=1 if feasible else None,
        choice_index=1 if feasible else None,
        reason="One process with a batch of 128 is the knee: two processes would save 4 s.",
        assumptions=("The learning rate follows the linear rule.",),
        facts={"metric": "accuracy", "train_samples": 1437, "workload": "digits-cnn", "reference_batch": 32},
    )


def outcome(*, job_id: str = "run-1", status: str = "FINISHED", **changes: object) -> Outcome:
    made = plan()
    forecast = made.table[1].forecast
    values: dict[str, object] = {
        "schema_version": 1,
        "job_id": job_id,
        "job_hash": made.job.digest,
        "job_name": "digits-cnn",
        "workload": "digits-cnn",
        "hardware": "0123456789abcdef",
        "predictor": made.predictor,
        "attempt": 1,
        "status": status,
        "failure": None if status == "FINISHED" else "process 1 was killed (signal 9)",
        "nodes": 1,
        "processes_per_node": 1,
        "local_batch": 128,
        "accumulation": 1,
        "mitigation": ("linear-lr",),
        "learning_rate": 0.2,
        "learning_rate_reductions": 0,
        "target_reached": True,
        "predicted": {name: interval.value for name, interval in forecast.items()},
        "predicted_low": {name: interval.low for name, interval in forecast.items()},
        "predicted_high": {name: interval.high for name, interval in forecast.items()},
        "actual": {
            "step_time_s": 0.0131,
            "time_to_train_s": 84.0,
            "epochs": 11.0,
            "accuracy": 0.9722,
            "cost_usd": None,
        },
        "curve": (),
        "run_folder": f"/tmp/{job_id}",
        "finished_at": "2026-01-02T03:04:05+00:00",
        **changes,
    }
    return Outcome(**values)  # type: ignore[arg-type]


def profile() -> Profile:
    facts = WorkloadFacts(
        name="digits-cnn",
        parameters=5000,
        gradient_bytes=20000,
        train_samples=1437,
        eval_samples=360,
        sample_shape=(1, 8, 8),
        sample_bytes=256,
        metric="accuracy",
        higher_is_better=True,
        metric_ceiling=1.0,
        chance=0.1,
        has_batch_norm=True,
        code_fingerprint="f" * 16,
        notes=(),
    )
    step = StepTiming(
        nodes=1,
        processes_per_node=2,
        local_batch=64,
        accumulation=1,
        steps=40,
        step_time_s=0.0123,
        step_time_median_s=0.0121,
        step_time_error_s=0.0002,
        block_scatter=None,
        first_step_s=0.3,
        loader_s=0.001,
        compute_s=0.009,
        communication_s=0.002,
        optimizer_s=0.0003,
        order=0,
    )
    return Profile(
        schema_version=1,
        job=plan().job.to_dict(),
        fingerprint="abcdef0123456789",
        facts=facts,
        hardware=Hardware(**HARDWARE),
        steps=(step,),
        communication=(),
        memory=(),
        start_up=(),
        evaluation=(),
        checkpoint_s=0.01,
        noise=None,
        pilots=(),
        probe=ProbeUse(budget_s=20.0, used_s=19.6, stopped_because="everything was measured"),
        warnings=(),
    )
