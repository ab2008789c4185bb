"""Predicted against actual at configurations that were not profiled, and the probe's share of the whole job's time.

``python -m tests.benchmarks.predicted_actual [--job fashion-cnn] [--configurations 5] [--probe 60]``

Profiles the job, forecasts it, then trains at configurations spread over the table among those that were not timed, and
prints step time and end-to-end time beside what was forecast. ``--job fashion-resnet18-5k`` is ResNet-18 on 5,000
images for one epoch. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tula_core import api
from tula_core.job import Job
from tula_core.progress import silent
from tula_core.records import Outcome, Plan, Profile, Row
from tula_core.training.run import Attempt, run_attempt

SMALL = {"fashion-resnet18-5k": "tests.benchmarks.small_workloads:fashion_resnet18_5k"}
QUANTITIES = {"step_time_s": "step", "time_to_train_s": "total"}


def job_of(name: str, probe_s: float, processes: int, overrides: Sequence[str]) -> Job:
    """Return the job to profile; without a target, so that every run is of a known length."""
    values = [f"probe.seconds={probe_s}", f"cluster.processes_per_node={processes}", "target=none", *overrides]
    if name not in SMALL:
        return Job.builtin(name, values)
    return Job.from_mapping(
        {
            "name": name,
            "workload": SMALL[name],
            "target": "none",
            "probe": {"seconds": probe_s},
            "cluster": {"processes_per_node": processes},
        }
    )


def unprofiled(plan: Plan, count: int) -> list[int]:
    """Return rows that can be trained and were not timed, evenly spread over the table."""
    rows = [i for i, row in enumerate(plan.table) if row["time_to_train_s"].value is not None and not row.measured]
    if len(rows) <= count:
        return rows
    places = [round(i * (len(rows) - 1) / max(count - 1, 1)) for i in range(count)]
    return [rows[place] for place in places]


def without(profile: Profile, count: int) -> Profile:
    """Return the profile without ``count`` timed configurations, evenly spread between the first and the last."""
    inner = len(profile.steps) - 2
    left_out = {1 + round((index + 0.5) * inner / count - 0.5) for index in range(min(count, inner))}
    kept = tuple(step for index, step in enumerate(profile.steps) if index not in left_out)
    return replace(profile, steps=kept)


def train(plan: Plan, row: Row) -> Outcome:
    """Return what really happened at a row; nothing is recorded."""
    with tempfile.TemporaryDirectory() as folder:
        attempt = Attempt(plan=plan, row=row, job_id="benchmark", number=1, folder=Path(folder), resume=False)
        attempt.task_folder.mkdir(parents=True)
        outcome, error = run_attempt(attempt, silent, lambda _, __: None)
    if error is not None:
        raise error
    return outcome


def line(row: Row, actual: dict[str, float | None]) -> tuple[str, dict[str, tuple[float, bool]]]:
    """Return a printed line, and by quantity the error in per cent and whether the actual lay inside."""
    c = row.candidate
    text = f"{c.nodes} x {c.processes_per_node}, {c.local_batch:5d} x {c.accumulation}"
    errors = {}
    for name, label in QUANTITIES.items():
        forecast, real = row[name], actual[name]
        assert forecast.value and forecast.low is not None and forecast.high is not None and real
        error, inside = 100 * (forecast.value / real - 1), forecast.low <= real <= forecast.high
        errors[name] = (error, inside)
        text += (
            f"   {label} {forecast.value:.4g} s ({forecast.low:.3g}-{forecast.high:.3g}), actual {real:.4g}: "
            f"{error:+.1f} % {'inside' if inside else 'OUTSIDE'}"
        )
    return text, errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile, forecast, train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--job", default="fashion-cnn")
    parser.add_argument("--configurations", type=int, default=5)
    parser.add_argument("--probe", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    asked = parser.parse_args(arguments)
    job, profile, _ = api.profile(job_of(asked.job, asked.probe, asked.processes, asked.overrides), reprofile=True)
    plan = api.plan(job, profile=profile)
    lacking = asked.configurations - len(unprofiled(plan, asked.configurations))
    if lacking > 0:
        plan = api.plan(job, profile=without(profile, lacking))
        print(f"{lacking} of {len(profile.steps)} timed configurations are kept from the models")
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in QUANTITIES}
    longest = 0.0
    for row in unprofiled(plan, asked.configurations):
        outcome = train(plan, plan.table[row])
        text, errors = line(plan.table[row], dict(outcome.actual))
        print(text, flush=True)
        for name, error in errors.items():
            found[name].append(error)
        longest = max(longest, outcome.actual["time_to_train_s"] or 0.0)
    for name, label in QUANTITIES.items():
        sizes = [abs(error) for error, _ in found[name]]
        inside = sum(held for _, held in found[name])
        print(
            f"{label}: mean error {statistics.fmean(sizes):.1f} %, median {statistics.median(sizes):.1f} %, "
            f"largest {max(sizes):.1f} %, inside {inside} of {len(sizes)}"
        )
    choice = plan.choice
    if choice is not None and choice["time_to_train_s"].value is not None:
        total = choice["time_to_train_s"].value
        print(
            f"probe {plan.probe.seconds:.0f} s: {100 * plan.probe.seconds / (plan.probe.seconds + total):.0f} % of its "
            f"time and the choice's {total:.0f} s together"
        )


if __name__ == "__main__":
    main()
