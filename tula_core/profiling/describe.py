"""Learning of a workload and a machine before anything is timed, in a worker that loads the user's code."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from tula_core.engine.hardware import available_cores, inspect_hardware, threads_per_process
from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import InputError
from tula_core.job import Job, Recipe, Target
from tula_core.progress import Event, Listener, silent
from tula_core.records import Hardware, Profile, WorkloadFacts

if TYPE_CHECKING:
    from tula_core.engine.context import WorkerContext

_GRACE_S = 1.0
_SAME = ("workload", "network", "dataset", "loss", "metric", "samples")
_PILOTS = ("mitigation", "mitigation_options")  # what the pilots were trained by


def describe(job: Job, listener: Listener = silent) -> tuple[Job, WorkloadFacts, Hardware]:
    """Return the job with every recipe field set, the workload's facts and the machine's.

    The workload is tried on a few samples first, so that its faults show under their own name.

    Raises
    ------
    InputError
        The workload cannot be loaded or is wrong.
    RunError
        The worker died; the message is its first real cause.
    """
    listener(Event(stage="describe", message="loading the workload", fraction=0.0))
    answer = _ask(job)
    resolved = Job.from_mapping(answer["job"])
    facts = TypeAdapter(WorkloadFacts).validate_python(answer["facts"])
    hardware = TypeAdapter(Hardware).validate_python(answer["hardware"])
    for note in (*facts.notes, *_note_of_rate(job, resolved)):
        listener(Event(stage="describe", message=note, level="info"))
    listener(
        Event(
            stage="describe",
            message=summary(hardware),
            fraction=1.0,
            level="info",
            data={"hardware": asdict(hardware), "facts": asdict(facts)},
        )
    )
    return resolved, facts, hardware


def _note_of_rate(asked: Job, resolved: Job) -> tuple[str, ...]:
    """Return that a rate is measured which nobody asked to measure."""
    recipe = resolved.recipe
    if not recipe.range_test or asked.recipe.range_test:
        return ()
    return (
        f"Nobody states a learning rate for {recipe.optimizer}: it is measured in the probe's time. "
        "Set recipe.learning_rate to a number to leave that out.",
    )


def complete(job: Job, profile: Profile) -> Job:
    """Return the job with every recipe field set from a profile's; nothing is loaded or measured.

    Raises
    ------
    InputError
        The profile is another workload's, or was measured with another recipe (the epochs may differ), with other
        methods, or with threads that the processes of this job cannot have.
    """
    measured = Job.from_mapping(profile.job, source="profile: job")
    for field in (*_SAME, *_PILOTS):
        _require_same(field, getattr(measured, field), getattr(job, field))
    target = measured.target if isinstance(measured.target, Target) else None
    resolved = job.resolved(measured.recipe, target)
    for field in sorted(set(Recipe.model_fields) - {"epochs", "range_test", "learning_rate"}):
        _require_same(f"recipe.{field}", getattr(measured.recipe, field), getattr(resolved.recipe, field))
    if resolved.recipe.range_test:
        if profile.learning_rate is None:
            raise InputError(
                f"recipe.learning_rate: is auto, but the profile was measured with {measured.recipe.learning_rate:g} "
                "and no range test. Give the profile of this job, or leave the profile out to measure."
            )
        resolved = at_measured_rate(resolved, profile)
    _require_same("recipe.learning_rate", measured.recipe.learning_rate, resolved.recipe.learning_rate)
    _require_threads(resolved, profile.hardware)
    return resolved


def at_measured_rate(job: Job, profile: Profile) -> Job:
    """Return the job at the learning rate of a profile's range test; the job itself where it had none."""
    return job if profile.learning_rate is None else job.at_learning_rate(profile.learning_rate.used)


def _require_threads(job: Job, hardware: Hardware) -> None:
    """Refuse measurements with more threads per process than the job's processes can have side by side."""
    threads = threads_per_process(job.cluster, hardware.cores)
    given = job.cluster.threads_per_process
    crowded = hardware.device == "cpu" and threads < hardware.threads_per_process
    if crowded or given not in (None, hardware.threads_per_process):
        raise InputError(
            f"cluster: {job.cluster.processes_per_node} processes on {hardware.cores} cores leave {threads} for "
            f"each, but the profile was measured with {hardware.threads_per_process} threads. "
            "Give a profile of as many processes, set cluster.threads_per_process to what was measured, or measure."
            if given is None
            else f"cluster.threads_per_process: is {given}, but the profile was measured with "
            f"{hardware.threads_per_process}. Leave it out, or leave the profile out to measure."
        )


def _require_same(field: str, measured: object, wanted: object) -> None:
    if measured != wanted:
        raise InputError(
            f"{field}: is {wanted!r}, but the profile was measured with {measured!r}. "
            "Give the profile of this job, or leave the profile out to measure."
        )


def summary(hardware: Hardware) -> str:
    """Return the machine in one line."""
    threads = f"{hardware.threads_per_process} thread{'s' if hardware.threads_per_process > 1 else ''} per process"
    memory = f"{hardware.memory_bytes / 2**30:.1f} GiB memory"
    torch = f"torch {hardware.versions.get('torch', 'unknown')}"
    if hardware.device == "cuda":
        each = (hardware.device_memory_bytes or 0) / 2**30
        return (
            f"{hardware.devices} x {hardware.device_name} ({each:.0f} GiB), {hardware.cores} cores, {memory}, {torch}"
        )
    cores = f"{hardware.cores} core{'s' if hardware.cores > 1 else ''}"
    return f"{hardware.device_name}, {cores}, {memory}, {threads}, {torch}"


def describe_in_worker(context: WorkerContext, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Entry of the worker: load, try, describe."""
    from tula_core import mitigations, workloads
    from tula_core.engine.method_needs import fitted_options

    job = Job.from_mapping(payload["job"])
    workload = workloads.load_workload(job)
    resolved = job.resolved(workload.recipe, workload.target)
    workloads.validate(workload)
    fitted_options(mitigations.resolve(resolved), resolved.mitigation_options, workload)
    return {
        "job": resolved.to_dict(),
        "facts": asdict(workloads.describe(workload, resolved)),
        "hardware": asdict(inspect_hardware(resolved.cluster)),
    }


def _ask(job: Job) -> Mapping[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="tula-describe-"))
    try:
        result: LaunchResult = launch(
            WorkerTask(
                entry=f"{__name__}:describe_in_worker",
                payload={"job": job.to_dict()},
                folder=folder,
                threads=threads_per_process(job.cluster, available_cores()),
                grace_s=_GRACE_S,
            ),
            lambda event: None,
        )
        return result.unwrap()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
